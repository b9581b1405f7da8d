"""Manifests as the watcher reads them; parts that make no sense are errors, for tests that look for just them."""

import json
from collections.abc import Callable
from typing import Any

from kaicore.errors import InvalidObject, Lost
from kaicore.kube.kinds.kind import Kind
from kaicore.yaml_text import load_yaml


def refuse(error: InvalidObject) -> None:
    """Raise what would be left out of an object."""
    raise error


def normalized_by(kind_of: Callable[[str, str], Kind[Any] | None], text: str, lost: Lost = refuse) -> Any:
    """Normalize the only object of a manifest, of a kind that is found by API version and name."""
    document = load_yaml(text)
    kind = kind_of(document["apiVersion"], document["kind"])
    assert kind is not None
    version = document["apiVersion"].rpartition("/")[2]
    return kind.normalize(kind.resource.at(version).decode(json.dumps(document).encode()), lost)
