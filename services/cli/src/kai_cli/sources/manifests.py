"""Kubernetes manifests as people keep them: YAML or JSON, several documents in a file, `List` kinds, folders."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kaicore.analysis.trial.simulation import Located
from kaicore.analysis.trial.simulation.manifest_text import Reading, read_text
from kaicore.errors import ConfigurationError, InvalidObject

Manifest = dict[str, Any]

#: Stands for standard input.
STDIN = Path("-")

_SUFFIXES = (".yaml", ".yml", ".json")


def check_submitted(files: Sequence[Path]) -> None:
    """Check what is named to be submitted. Raises ConfigurationError: nothing is, or an option that there is not."""
    if not files:
        raise ConfigurationError("nothing to submit: name files or folders, or - for standard input")
    for file in files:
        if str(file).startswith("-") and file != STDIN:
            raise ConfigurationError(f"no such option: {file}")


def read_manifests(paths: list[Path]) -> list[Manifest]:
    """Read all objects of files and folders, in order of name within a folder; lists are taken apart.

    Raises:
        ConfigurationError: a file cannot be read or parsed.
        InvalidObject: a document is no Kubernetes object or has no name; names file and document.
    """
    reading = read_files(paths)
    if reading.strangers:
        raise ConfigurationError(f"{reading.strangers[0]}: not a Kubernetes object")
    faultless = _faultless(reading)
    for where, manifest in faultless:
        metadata = manifest.get("metadata")
        if not isinstance(metadata, dict) or not (metadata.get("name") or metadata.get("generateName")):
            raise InvalidObject(f"{where}, {manifest['kind']}", "metadata.name", metadata, "missing")
    return [one.object for one in faultless]


def read_located(paths: list[Path]) -> list[Located]:
    """Read objects of files and folders, each with file and document; `-` is standard input.

    Raises:
        ConfigurationError: a file cannot be read or parsed.
        InvalidObject: a document is no Kubernetes object; names file and document.
    """
    return _faultless(read_files(paths))


def read_files(paths: list[Path]) -> Reading:
    """Read files and folders, whatever is wrong with some of them; `-` is standard input.

    Raises ConfigurationError: there is no such file, or it cannot be opened.
    """
    reading = Reading()
    for path in paths:
        if path == STDIN:
            text = sys.stdin.buffer.read()
            if not text.strip():
                raise ConfigurationError("standard input is empty")
            read_text(reading, "standard input", text, is_json=None, named=True)
            continue
        for file in _files(path):
            try:
                text = file.read_bytes()
            except OSError as error:
                raise ConfigurationError(f"{file}: {error.strerror or error}") from error
            read_text(reading, str(file), text, is_json=file.suffix == ".json", named=file == path)
    return reading


def _faultless(reading: Reading) -> list[Located]:
    if reading.problems:
        raise reading.problems[0]
    return reading.objects


def _files(path: Path) -> list[Path]:
    """Return a file, or those of a folder; one that cannot be listed is no empty one."""
    problems: list[OSError] = []
    try:
        if not path.exists():
            raise ConfigurationError(f"{path}: no such file or folder")
        if not path.is_dir():
            return [path]
        listed = [Path(folder, name) for folder, _, names in os.walk(path, onerror=problems.append) for name in names]
        files = sorted(file for file in listed if file.suffix in _SUFFIXES and file.is_file())
        if problems:
            raise problems[0]
    except OSError as error:
        raise ConfigurationError(f"{error.filename}: {error.strerror}") from error
    return files
