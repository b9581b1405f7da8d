"""Keys of the API: those that `kai keys` makes, and the one of `kai up`, for its own commands and a browser only."""

import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import yaml
from cyclopts import Parameter
from cyclopts.validators import Number
from kaicore.errors import ConfigurationError
from kaicore.runtime.access.scopes import key_hash, new_key
from kaicore.runtime.access.secret_files import write_secret
from kaicore.yaml_text import load_yaml, place_of_fault


@dataclass(frozen=True, slots=True)
class ApiAccess:
    """A folder of a data directory, readable for its owner only: a key, an access file with its hash, a secret."""

    directory: Path

    @property
    def access_file(self) -> Path:
        """The file that the API reads; entries that an operator adds to it stay."""
        return self.directory / "access.yaml"

    @property
    def session_secret_file(self) -> Path:
        """Signs browsers' sessions, so that they outlive the API's process."""
        return self.directory / "session-secret"

    def key(self) -> str:
        """Return the key, which is made at the first start."""
        file = self.directory / "key"
        self.directory.mkdir(mode=0o700, exist_ok=True)
        if not file.exists():
            key = new_key()
            write_secret(self.session_secret_file, secrets.token_urlsafe(32).encode())
            entry = f"keys:\n- name: kai-up\n  hash: {key_hash(key)}\n  scopes: ['*']\n"
            write_secret(self.access_file, entry.encode())
            write_secret(file, key.encode())
        return file.read_text()

    def environment(self) -> dict[str, str]:
        """Return the settings of the API."""
        return {
            "KAI_ACCESS_FILE": str(self.access_file),
            "KAI_SESSION_SECRET_FILE": str(self.session_secret_file),
        }


def new(
    name: str,
    /,
    *,
    file: Path,
    scope: list[str],
    days: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
) -> None:
    """Make a key of the API: its hash goes into an access file, and the key is printed, once.

    Args:
        name: of its holder, such as grafana; the API says it where it refuses something.
        file: the access file; made when missing.
        scope: what its holder may see, repeated: CLUSTER, CLUSTER/NAMESPACE, */NAMESPACE, or * for everything;
            inputs:CLUSTER lets it record policy inputs.
        days: for how many days it is good; by default without end.
    """
    document = _read(file)
    keys = document.setdefault("keys", [])
    if any(entry.get("name") == name for entry in keys):
        raise ConfigurationError(f"{file}: there is a key {name!r} already: choose another name, or take it out first")
    key = new_key()
    entry: dict[str, Any] = {"name": name, "hash": key_hash(key), "scopes": list(scope)}
    if days is not None:
        entry["expires"] = datetime.now(tz=UTC) + timedelta(days=days)
    keys.append(entry)
    write_secret(file, yaml.safe_dump(document, sort_keys=False).encode())
    print(key)


def _read(file: Path) -> dict[str, Any]:
    try:
        document = load_yaml(file.read_text()) if file.exists() else {}
    except OSError as error:
        raise ConfigurationError(f"{file}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{file}: {place_of_fault(error)}") from None
    document = document or {}
    if not isinstance(document, dict) or not all(isinstance(entry, dict) for entry in document.get("keys", [])):
        raise ConfigurationError(f"{file}: is no access file")
    return document
