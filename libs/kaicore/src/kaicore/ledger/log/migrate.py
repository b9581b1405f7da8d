"""Migration of a database to the schema that this version needs.

The scripts in `migrations/` are the only place that changes the schema. In a checkout they lie at its root, in an
installed wheel in `kaicore/_migrations`.
"""

from pathlib import Path

import psycopg

from kaicore.errors import ConfigurationError, KaiError, LogError, LogUnavailable
from kaicore.ledger.connections import check_ports, is_hopeless, without_login

#: Key of the advisory lock that lets one process migrate while the others wait.
_LOCK = 0x6B61692D6C6F67


def upgrade(url: str) -> None:
    """Migrate the database to the newest schema; do nothing when it is there already.

    Any number of processes may call this at once. It blocks: in a coroutine, call it through `asyncio.to_thread`.

    Args:
        url: `postgresql://…` of the database; several hosts with commas between them.

    Raises:
        LogUnavailable: no server answers.
        ConfigurationError: the url is none, the database was migrated by a newer version or has another encoding than
            UTF8, or the scripts are missing.
        LogError: the server refuses a step, such as for lack of a privilege.
    """
    check_ports(url)
    scripts = _scripts()
    if _revision_of(url) == _newest(scripts):
        return
    # Half a second of imports that no reader or writer of the log needs, and no start on a log that is migrated.
    import sqlalchemy.exc  # noqa: PLC0415
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415
    from alembic.util import CommandError  # noqa: PLC0415
    from sqlalchemy import create_engine, text  # noqa: PLC0415
    from sqlalchemy.pool import NullPool  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(scripts).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    # SQLAlchemy's own urls have no room for several hosts.
    engine = create_engine("postgresql+psycopg://", creator=lambda: _connected(url), poolclass=NullPool)
    try:
        with engine.begin() as connection:
            # The functions name the tables of this schema, whatever path the database or the role sets.
            path = "SELECT set_config('search_path', 'public, pg_temp', true), pg_advisory_xact_lock(:key)"
            connection.execute(text(path), {"key": _LOCK})
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    except CommandError as error:
        raise ConfigurationError(f"the database was migrated by a newer kai-ledger: {error}") from error
    except sqlalchemy.exc.OperationalError as error:
        raise _unreachable(url, error.orig) from None
    except sqlalchemy.exc.SQLAlchemyError as error:
        # SQLAlchemy's own text has the statement in it, and an address.
        raise LogError(f"cannot migrate: {without_login(url, getattr(error, 'orig', None) or error)}") from None


def admit_roles(url: str) -> None:
    """Admit the roles of services that were made after the database was migrated; of others nothing changes.

    Args:
        url: as in `upgrade`, of the role that owns the log.

    Raises:
        LogUnavailable: no server answers.
        LogError: the server refuses it.
    """
    try:
        with psycopg.connect(url) as connection:
            connection.execute("SELECT kai_admit_roles()")
    except psycopg.OperationalError as error:
        raise _unreachable(url, error) from None
    except psycopg.Error as error:
        raise LogError(f"cannot admit the roles of services: {without_login(url, error)}") from None


def _connected(url: str) -> psycopg.Connection:
    """Connect. Raises ConfigurationError: the database cannot keep any text, of which names of objects may be."""
    connection = psycopg.connect(url, client_encoding="utf8")
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        name = connection.info.dbname
        connection.close()
        raise ConfigurationError(
            f"database {name}: encoding: a log needs UTF8, make the database with ENCODING 'UTF8' TEMPLATE template0: "
            f"{encoding!r}"
        )
    return connection


def _revision_of(url: str) -> str | None:
    """Return the revision that a database is at; None where it has none yet, or the user may not ask."""
    try:
        with _connected(url) as connection:
            row = connection.execute("SELECT version_num FROM public.alembic_version").fetchone()
            return None if row is None else str(row[0])
    except psycopg.OperationalError as error:
        raise _unreachable(url, error) from None
    except psycopg.Error:
        return None


def _unreachable(url: str, error: BaseException | None) -> KaiError:
    kind = ConfigurationError if is_hopeless(error) else LogUnavailable
    return kind(f"cannot migrate: {without_login(url, error)}")


def _newest(scripts: Path) -> str:
    return max(file.name.partition("_")[0] for file in (scripts / "versions").glob("[0-9]*.py"))


def _scripts() -> Path:
    package = Path(__file__).resolve().parents[2]
    for candidate in (package / "_migrations", package.parents[3] / "migrations"):
        if (candidate / "env.py").exists():
            return candidate
    raise ConfigurationError("the migration scripts are missing from this installation")
