"""`kai keys`: keys with which callers prove to the API who they are."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import yaml
from cyclopts import Parameter
from cyclopts.validators import Number
from kaicore.errors import ConfigurationError
from kaicore.runtime.access.access_file import key_hash, new_key
from kaicore.yaml_text import load_yaml, place_of_fault

from kai_cli.api_access import write_secret


def new(
    name: str,
    /,
    *,
    file: Path,
    scope: list[str],
    days: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
) -> int:
    """Make a key of the API: its hash goes into an access file, and the key is printed, once.

    Args:
        name: of its holder, such as grafana; the API says it where it refuses something.
        file: the access file; made when missing.
        scope: what its holder may see, repeated: CLUSTER, CLUSTER/NAMESPACE, */NAMESPACE, or * for everything.
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
    write_secret(file, yaml.safe_dump(document, sort_keys=False))
    print(key)
    return 0


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
