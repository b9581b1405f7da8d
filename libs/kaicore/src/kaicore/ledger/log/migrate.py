"""Bring a database to the schema that this version needs.

The scripts in `migrations/` are the only place that changes the schema. In a checkout they lie at its root, in an
installed wheel in `kaicore/_migrations`.
"""

from pathlib import Path

from kaicore.errors import ConfigurationError, LogError, LogUnavailable
from kaicore.ledger.log.url_errors import check_ports, is_hopeless, without_login

#: Key of the advisory lock that lets one process migrate while the others wait.
_LOCK = 0x6B61692D6C6F67


def upgrade(url: str) -> None:
    """Migrate the database to the newest schema; do nothing when it is there already.

    Any number of processes may call this at once. It blocks: in a coroutine, call it through `asyncio.to_thread`.

    Args:
        url: `postgresql://…` of the database; several hosts with commas between them.

    Raises:
        LogUnavailable: no server answers.
        ConfigurationError: the url is none, the database was migrated by a newer version, or the scripts are missing.
        LogError: the server refuses a step, such as for lack of a privilege.
    """
    # Half a second of imports that no reader or writer of the log needs.
    import psycopg  # noqa: PLC0415
    import sqlalchemy.exc  # noqa: PLC0415
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415
    from alembic.util import CommandError  # noqa: PLC0415
    from sqlalchemy import create_engine, text  # noqa: PLC0415
    from sqlalchemy.pool import NullPool  # noqa: PLC0415

    check_ports(url)
    config = Config()
    config.set_main_option("script_location", str(_scripts()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    # SQLAlchemy's own urls have no room for several hosts.
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(url), poolclass=NullPool)
    try:
        with engine.begin() as connection:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    except CommandError as error:
        raise ConfigurationError(f"the database was migrated by a newer kai-ledger: {error}") from error
    except sqlalchemy.exc.OperationalError as error:
        kind = ConfigurationError if is_hopeless(error.orig) else LogUnavailable
        raise kind(f"cannot migrate: {without_login(url, error.orig)}") from None
    except sqlalchemy.exc.SQLAlchemyError as error:
        raise LogError(f"cannot migrate: {without_login(url, error)}") from None


def _scripts() -> Path:
    package = Path(__file__).resolve().parents[2]
    for candidate in (package / "_migrations", package.parents[3] / "migrations"):
        if (candidate / "env.py").exists():
            return candidate
    raise ConfigurationError("the migration scripts are missing from this installation")
