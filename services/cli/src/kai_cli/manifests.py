"""Kubernetes manifests as people keep them: YAML or JSON, several documents in a file, `List` kinds, folders."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml
from kaicore.errors import ConfigurationError, InvalidObject

Manifest = dict[str, Any]

_SUFFIXES = (".yaml", ".yml", ".json")
_YamlLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_manifests(paths: list[Path]) -> list[Manifest]:
    """Read all objects of files and folders, in order of name within a folder; lists are taken apart.

    Raises:
        ConfigurationError: a file cannot be read or parsed.
        InvalidObject: a document is no Kubernetes object; names file and document.
    """
    return [manifest for path in paths for file in _files(path) for manifest in _objects(file)]


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise ConfigurationError(f"{path}: no such file or folder")
    if path.is_dir():
        return sorted(file for file in path.rglob("*") if file.suffix in _SUFFIXES)
    return [path]


def _objects(file: Path) -> Iterator[Manifest]:
    try:
        text = file.read_bytes()
        if file.suffix == ".json":
            documents = [msgspec.json.decode(text)]
        else:
            documents = list(yaml.load_all(text, Loader=_YamlLoader))
    except (OSError, msgspec.DecodeError, yaml.YAMLError) as error:
        raise ConfigurationError(f"{file}: {error}") from error
    for number, document in enumerate(documents, start=1):
        if document is not None:
            yield from _flattened(document, f"{file}, document {number}")


def _flattened(document: Any, where: str) -> Iterator[Manifest]:
    if not isinstance(document, dict):
        raise InvalidObject(where, "document", document, "not a Kubernetes object")
    for field in ("apiVersion", "kind"):
        if not isinstance(document.get(field), str):
            raise InvalidObject(where, field, document.get(field), "missing or no text")
    if document["kind"].endswith("List") and isinstance(document.get("items"), list):
        for number, item in enumerate(document["items"]):
            yield from _flattened(item, f"{where}, items[{number}]")
        return
    metadata = document.get("metadata")
    if not isinstance(metadata, dict) or not (metadata.get("name") or metadata.get("generateName")):
        raise InvalidObject(f"{where}, {document['kind']}", "metadata.name", metadata, "missing")
    yield document
