"""Publishes a node's NodeResourceTopology where no other publisher does.

An object is ours if it carries our annotation and still has the contents that we wrote, by their digest. Any other one
is another publisher's, and is left alone; so is one of ours that somebody else has written to since. Writes name the
resourceVersion that was read, so two of us cannot undo each other. The object belongs to its Node and goes with it.
"""

import hashlib
from dataclasses import dataclass
from enum import StrEnum

import msgspec
from kaicore.errors import ApiStatus

from kai_exporter.api_server import ApiServer
from kai_exporter.node_topology import Json

PATH = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"
API_VERSION = "topology.node.k8s.io/v1alpha2"

MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
MANAGER = "kai-exporter"
DIGEST_ANNOTATION = "kai.scheduler/published-digest"

_NOT_FOUND, _CONFLICT = 404, 409


class Published(StrEnum):
    """The result for an object: written, unchanged, another's, or changed by others just now."""

    WRITTEN = "written"
    UNCHANGED = "unchanged"
    OTHERS = "others"
    CONFLICT = "conflict"


class _Metadata(msgspec.Struct, rename="camel"):
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Object(msgspec.Struct, rename="camel"):
    metadata: _Metadata
    topology_policies: list[str] = []
    attributes: list[Json] = []
    zones: list[Json] = []


@dataclass(frozen=True, slots=True)
class TopologyPublisher:
    """Writes one node's object."""

    client: ApiServer
    node: str

    async def publish(self, contents: Json) -> Published:
        """Write an object's contents, unless it has them or is another's.

        Args:
            contents: see `kai_exporter.node_topology`.

        Raises:
            ApiStatus: the API server refuses: no CustomResourceDefinition, no right, no such node.
            ClusterUnavailable: it does not answer, or cannot now.
        """
        digest = _digest(contents)
        current = await self._read()
        if current is None:
            return await self._create(contents, digest)
        if not _is_ours(current):
            return Published.OTHERS
        annotations = current.metadata.annotations or {}
        if annotations[DIGEST_ANNOTATION] == digest:
            return Published.UNCHANGED
        metadata = {"resourceVersion": current.metadata.resource_version, "annotations": {DIGEST_ANNOTATION: digest}}
        try:
            await self.client.patch(f"{PATH}/{self.node}", {"metadata": metadata, **contents})
        except ApiStatus as error:
            if error.code in (_CONFLICT, _NOT_FOUND):
                return Published.CONFLICT
            raise
        return Published.WRITTEN

    async def _read(self) -> _Object | None:
        try:
            return msgspec.json.decode(await self.client.get(f"{PATH}/{self.node}"), type=_Object)
        except ApiStatus as error:
            if error.code == _NOT_FOUND and error.reason == "NotFound":
                return None
            raise

    async def _create(self, contents: Json, digest: str) -> Published:
        node = msgspec.json.decode(await self.client.get(f"/api/v1/nodes/{self.node}"), type=_Object)
        metadata = {
            "name": self.node,
            "labels": {MANAGED_BY_LABEL: MANAGER},
            "annotations": {DIGEST_ANNOTATION: digest},
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": self.node, "uid": node.metadata.uid},
            ],
        }
        body = {"apiVersion": API_VERSION, "kind": "NodeResourceTopology", "metadata": metadata, **contents}
        try:
            await self.client.post(PATH, body)
        except ApiStatus as error:
            if error.code == _CONFLICT:
                return Published.CONFLICT
            raise
        return Published.WRITTEN


def _is_ours(current: _Object) -> bool:
    labels, annotations = current.metadata.labels or {}, current.metadata.annotations or {}
    contents = {"topologyPolicies": current.topology_policies, "attributes": current.attributes, "zones": current.zones}
    return labels.get(MANAGED_BY_LABEL) == MANAGER and annotations.get(DIGEST_ANNOTATION) == _digest(contents)


def _digest(contents: Json) -> str:
    return hashlib.sha256(msgspec.json.encode(contents, order="deterministic")).hexdigest()[:32]
