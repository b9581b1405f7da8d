"""Kubernetes objects against the schemas of several Kubernetes versions, without an API server.

The schemas are those of the package kubernetes-validate, which has them from each release's OpenAPI document. They are
the strict ones: a field that a version does not have is a problem. So are an API version that is not served any more,
and one that is deprecated because a stable one is served beside it.
"""

import json
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
from referencing import Registry, Resource

#: The versions that the chart is for: docs/reference/chart.md.
VERSIONS = tuple(f"1.{minor}" for minor in range(31, 38))
#: API groups of Kubernetes' own end in this, or have no dot.
_OWN = ".k8s.io"

Json = dict[str, Any]


def without_schemas() -> list[str]:
    """Return those of `VERSIONS` that this kubernetes-validate knows nothing of."""
    return [version for version in VERSIONS if not _folder(version).exists()]


def _folder(version: str) -> Path:
    return Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema" / f"v{version}.0-local-strict"


@cache
def _definitions(version: str) -> Registry[Any]:
    definitions: Resource[Any] = Resource.from_contents(
        json.loads((_folder(version) / "_definitions.json").read_text())
    )
    return definitions @ Registry()


@cache
def _validator(version: str, name: str) -> jsonschema.Draft202012Validator | None:
    path = _folder(version) / f"{name}.json"
    if not path.exists():
        return None
    return jsonschema.Draft202012Validator(json.loads(path.read_text()), registry=_definitions(version))


def is_builtin(document: Json) -> bool:
    """True if Kubernetes itself serves an object's kind, and not a CustomResourceDefinition."""
    group, slash, _ = document["apiVersion"].partition("/")
    return not slash or "." not in group or (group.endswith(_OWN) and group != "topology.node.k8s.io")


def problems(documents: Iterable[Json], version: str) -> Iterator[str]:
    """Say what an API server of a version would not take, a line each: object, field, what is wrong."""
    for document in documents:
        if not is_builtin(document):
            continue
        name = f"Kubernetes {version}: {document['kind']} {document['metadata']['name']}"
        group, _, api_version = document["apiVersion"].rpartition("/")
        kind = f"{document['kind'].lower()}-{group.partition('.')[0]}".rstrip("-")
        validator = _validator(version, f"{kind}-{api_version}")
        if validator is None:
            yield f"{name}: {document['apiVersion']} is not served"
            continue
        if api_version != "v1" and _validator(version, f"{kind}-v1") is not None:
            yield f"{name}: {document['apiVersion']} is deprecated: {group}/v1 is served"
        for problem in _refused(version, f"{kind}-{api_version}", json.dumps(document)):
            yield f"{name}: {problem}"


@cache
def _refused(version: str, schema: str, document: str) -> tuple[str, ...]:
    """Field and problem of each error; most objects of two sets of values are the same, and checked once."""
    validator = _validator(version, schema)
    assert validator is not None
    errors = validator.iter_errors(json.loads(document))
    return tuple(f"{error.json_path.removeprefix('$.')}: {error.message}" for error in errors)
