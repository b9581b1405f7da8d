"""Kubernetes manifests as people keep them: YAML or JSON, several documents in a file, `List` kinds, folders."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml
from kaicore.errors import ConfigurationError, InvalidObject
from kaicore.simulation import Located

Manifest = dict[str, Any]

#: Stands for standard input.
STDIN = Path("-")

_SUFFIXES = (".yaml", ".yml", ".json")
_YamlLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_manifests(paths: list[Path]) -> list[Manifest]:
    """Read all objects of files and folders, in order of name within a folder; lists are taken apart.

    Raises:
        ConfigurationError: a file cannot be read or parsed.
        InvalidObject: a document is no Kubernetes object; names file and document.
    """
    return [found.object for found in read_located(paths)]


def read_located(paths: list[Path]) -> Iterator[Located]:
    """Read objects as `read_manifests` does, each with file and document; `-` is standard input.

    Raises:
        ConfigurationError: a file cannot be read or parsed.
        InvalidObject: a document is no Kubernetes object; names file and document.
    """
    for path in paths:
        if path == STDIN:
            yield from _objects("standard input", sys.stdin.buffer.read(), is_json=None)
            continue
        for file in _files(path):
            try:
                text = file.read_bytes()
            except OSError as error:
                raise ConfigurationError(f"{file}: {error.strerror or error}") from error
            yield from _objects(str(file), text, is_json=True if file.suffix == ".json" else None)


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise ConfigurationError(f"{path}: no such file or folder")
    if path.is_dir():
        return sorted(file for file in path.rglob("*") if file.suffix in _SUFFIXES and file.is_file())
    return [path]


def _objects(name: str, text: bytes, *, is_json: bool | None) -> Iterator[Located]:
    """Yield the objects of a file; where it is not known to be JSON it is tried as that if it looks like it."""
    try:
        for number, document in enumerate(_documents(text, is_json=is_json), start=1):
            if document is not None:
                yield from _flattened(document, f"{name}, document {number}")
    except (msgspec.MsgspecError, yaml.YAMLError, UnicodeDecodeError, RecursionError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{name}: {error}") from error


def _documents(text: bytes, *, is_json: bool | None) -> list[Any]:
    if is_json or (is_json is None and text.lstrip().startswith(b"{")):
        try:
            return [msgspec.json.decode(text)]
        except msgspec.DecodeError:
            if is_json or b"\n---" not in text:
                raise
    # YAML knows more than JSON does: times, dates, numbers that are none.
    return [msgspec.json.decode(msgspec.json.encode(document)) for document in yaml.load_all(text, Loader=_YamlLoader)]


def _flattened(document: Any, where: str) -> Iterator[Located]:
    if not isinstance(document, dict):
        raise InvalidObject(where, "document", document, "not a Kubernetes object")
    for field in ("apiVersion", "kind"):
        if not isinstance(document.get(field), str):
            raise InvalidObject(where, field, document.get(field), "missing or no text")
    kind = document["kind"]
    if kind.endswith("List") and (kind == "List" or "items" in document):
        items = document.get("items") or []
        if not isinstance(items, list):
            raise InvalidObject(where, "items", items, "not a list")
        for number, item in enumerate(items):
            # An API server's lists say once what their items are.
            told = {} if kind == "List" else {"apiVersion": document["apiVersion"], "kind": kind.removesuffix("List")}
            yield from _flattened({**told, **item} if isinstance(item, dict) else item, f"{where}, items[{number}]")
        return
    metadata = document.get("metadata")
    if not isinstance(metadata, dict) or not (metadata.get("name") or metadata.get("generateName")):
        raise InvalidObject(f"{where}, {kind}", "metadata.name", metadata, "missing")
    yield Located(where, document)
