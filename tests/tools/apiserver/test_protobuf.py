"""Protobuf bodies are read as the same objects in JSON.

`kubernetes-1.36.tar.xz` has objects of the built-in kinds with every field set, in JSON and in protobuf, as Kubernetes'
own tests compare them: testdata/HEAD of the Go module k8s.io/api v0.36.0 (Apache License 2.0).
"""

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from kai_apiserver.errors import StatusError
from kai_apiserver.http.protobuf import MEDIA_TYPE, decode_protobuf
from kai_apiserver.resources.builtin import BUILTIN_RESOURCES

from tests.tools.apiserver.client import PODS, Client, pod

VECTORS = Path(__file__).parent / "kubernetes-1.36.tar.xz"
#: A kind of another module, of which there are no such objects, and three that are read as JSON and YAML alone.
ELSEWHERE = {
    "CustomResourceDefinition",
    "DeviceTaintRule",
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
}


@pytest.fixture(scope="module")
def vectors() -> dict[str, bytes]:
    with tarfile.open(VECTORS) as archive:
        return {item.name: archive.extractfile(item).read() for item in archive}  # type: ignore[union-attr]


KINDS = sorted({f"{item.group or 'core'}.{item.version}.{item.kind}" for item in BUILTIN_RESOURCES})


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.rpartition(".")[2] not in ELSEWHERE])
def test_every_built_in_kind_is_read_with_every_field(vectors: dict[str, bytes], kind: str) -> None:
    assert decode_protobuf(vectors[f"{kind}.pb"]) == json.loads(vectors[f"{kind}.json"])


def _varint(value: int) -> bytes:
    return bytes([value & 0x7F | 0x80]) + _varint(value >> 7) if value > 0x7F else bytes([value])


def _field(number: int, payload: bytes | int) -> bytes:
    if isinstance(payload, int):
        return _varint(number << 3) + _varint(payload)
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _envelope(kind: bytes, raw: bytes) -> bytes:
    return b"k8s\x00" + _field(1, _field(1, b"v1") + _field(2, kind)) + _field(2, raw)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"k8s\x00",
        _envelope(b"Unheard", b""),
        _envelope(b"ConfigMap", _field(1, _field(1, b"\xff"))),
        _envelope(b"ConfigMap", b"\x0a\x7f"),
        _envelope(b"ConfigMap", _field(1, 5)),
    ],
)
def test_malformed_protobuf_is_refused(body: bytes) -> None:
    with pytest.raises(StatusError) as refused:
        decode_protobuf(body)
    assert refused.value.code == 415


def test_fields_of_later_versions_are_dropped() -> None:
    body = _envelope(b"ConfigMap", _field(1, _field(1, b"c")) + _field(15, b"x"))
    assert decode_protobuf(body) == {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}


def test_a_definitions_schema_is_read() -> None:
    """A case without recorded objects: JSON schemas, which are trees of alternatives."""
    items = _field(24, _field(1, _field(5, b"string")))
    anything = _field(30, _field(1, 1) + _field(2, b""))
    properties = _field(29, _field(1, b"a") + _field(2, _field(5, b"array") + items))
    schema = _field(1, _field(5, b"object") + properties + anything + _field(8, _field(1, b'{"a":[]}')))
    version = _field(1, b"v1") + _field(2, 1) + _field(4, schema)
    raw = _field(2, _field(1, b"x.io") + _field(7, version))
    envelope = _field(1, _field(1, b"apiextensions.k8s.io/v1") + _field(2, b"CustomResourceDefinition"))
    read: Any = decode_protobuf(b"k8s\x00" + envelope + _field(2, raw))
    assert read["spec"]["versions"][0]["schema"]["openAPIV3Schema"] == {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"type": "string"}}},
        "additionalProperties": {},
        "default": {"a": []},
    }


async def test_a_pod_in_protobuf_is_created(client: Client, vectors: dict[str, bytes]) -> None:
    """The pod of the recorded objects makes no sense, but is understood; a small one is created."""
    refused = await client.post(PODS, vectors["core.v1.Pod.pb"], content_type=MEDIA_TYPE)
    assert refused.status == 400
    assert refused.json["message"] == "resourceVersion should not be set on objects to be created"
    container = _field(1, b"c") + _field(2, b"image")
    body = _envelope(b"Pod", _field(1, _field(1, b"p")) + _field(2, _field(2, container)))
    created = await client.post(PODS, body, content_type=MEDIA_TYPE)
    assert created.status == 201, created
    same = await client.post(PODS, pod("q", containers=[{"name": "c", "image": "image"}]))
    assert created.json["spec"] == same.json["spec"]
