"""Discovery: which groups, versions and resources there are, in the old form and in the aggregated one.

OpenAPI, as much as `kubectl apply` asks for: which parameters a patch takes. No fields are described: of built-in
types `kubectl` knows itself how lists merge.
"""

import hashlib

from kai_apiserver.objects import Object, encode_json
from kai_apiserver.resources.registry import Registry, ResourceType, Subresource

#: What clients ask for, and what the type they are given: `@` is no character of a media type.
V2_PROTOBUF_ASKED = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
V2_PROTOBUF = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"

_PATCH_PARAMETERS = ("dryRun", "fieldManager", "fieldValidation", "force")


class OpenApi:
    """The documents, encoded, as long as the resources stay the same."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._revision = -1
        self._documents: dict[str, bytes] = {}
        self._index = b""

    def index(self) -> bytes:
        """`/openapi/v3`: where the document of each group and version is."""
        self._refresh()
        return self._index

    def document(self, path: str) -> bytes | None:
        """The document at a path such as `apis/batch/v1`, or None."""
        self._refresh()
        return self._documents.get(path)

    def _refresh(self) -> None:
        if self._revision == self._registry.revision:
            return
        self._documents = {
            f"apis/{group}/{version}" if group else f"api/{version}": encode_json(
                document_v3(self._registry, group, version)
            )
            for group, versions in self._registry.groups().items()
            for version in versions
        }
        paths = {
            path: {"serverRelativeURL": f"/openapi/v3/{path}?hash={hashlib.sha512(document).hexdigest().upper()}"}
            for path, document in self._documents.items()
        }
        self._index = encode_json({"paths": paths})
        self._revision = self._registry.revision


def document_v3(registry: Registry, group: str, version: str) -> Object:
    """The document of one group and version. Raises StatusError: 404 if there is no such group and version."""
    return {
        "openapi": "3.0.0",
        "info": {"title": "kai-ledger simulated API server", "version": "v1"},
        "paths": {_path(resource): _operations(resource) for resource in registry.in_version(group, version)},
        "components": {"schemas": {}},
    }


def _path(resource: ResourceType) -> str:
    root = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
    inner = "/namespaces/{namespace}" if resource.namespaced else ""
    return f"{root}{inner}/{resource.plural}/{{name}}"


def _operations(resource: ResourceType) -> Object:
    kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    parameters = [{"name": name, "in": "query", "schema": {"type": "string"}} for name in _PATCH_PARAMETERS]
    return {"patch": {"parameters": parameters, "x-kubernetes-group-version-kind": kind}}


def document_v2() -> Object:
    """`/openapi/v2` as JSON: a document without definitions."""
    return {
        "swagger": "2.0",
        "info": {"title": "kai-ledger simulated API server", "version": "v1"},
        "paths": {},
        "definitions": {},
    }


def document_v2_protobuf() -> bytes:
    """The same in the encoding that `kubectl` asks for.

    Fields: 1 swagger, 2 info (1 title, 2 version), 8 paths and 9 definitions, both empty.
    """

    def field(number: int, payload: bytes) -> bytes:
        return bytes([number << 3 | 2, len(payload)]) + payload

    document = document_v2()
    info = field(1, document["info"]["title"].encode()) + field(2, document["info"]["version"].encode())
    return field(1, document["swagger"].encode()) + field(2, info) + field(8, b"") + field(9, b"")


#: The Accept parameters and Content-Type of aggregated discovery.
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


def api_versions(address: str) -> Object:
    """`/api`."""
    return {
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    }


def group_list(registry: Registry) -> Object:
    """`/apis`."""
    groups = [_group(name, versions) for name, versions in registry.groups().items() if name]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def group(registry: Registry, name: str) -> Object | None:
    """`/apis/<group>`, or None if there is no such group."""
    versions = registry.groups().get(name)
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(name, versions)} if versions else None


def _group(name: str, versions: list[str]) -> Object:
    described = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": described, "preferredVersion": described[0]}


def resource_list(registry: Registry, group_name: str, version: str) -> Object:
    """`/api/v1` or `/apis/<group>/<version>`. Raises StatusError: 404 if there is no such group and version."""
    resources: list[Object] = []
    for resource in registry.in_version(group_name, version):
        resources.append(_resource(resource))
        resources += [_subresource(resource, sub) for sub in sorted(resource.subresources, key=lambda sub: sub.name)]
    listed: Object = {"kind": "APIResourceList"}
    if group_name:
        listed["apiVersion"] = "v1"
    return listed | {
        "groupVersion": f"{group_name}/{version}" if group_name else version,
        "resources": resources,
    }


def _other_names(resource: ResourceType) -> Object:
    names = {"shortNames": list(resource.short_names), "categories": list(resource.categories)}
    return {field: some for field, some in names.items() if some}


def _resource(resource: ResourceType) -> Object:
    described: Object = {
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": list(resource.verbs),
        **_other_names(resource),
    }
    if resource.stored:
        described["storageVersionHash"] = resource.storage_version_hash
    return described


def _subresource(resource: ResourceType, sub: Subresource) -> Object:
    described: Object = {
        "name": f"{resource.plural}/{sub.name}",
        "singularName": "",
        "namespaced": resource.namespaced,
        "kind": sub.kind,
        "verbs": list(sub.verbs),
    }
    if sub.group:
        described |= {"group": sub.group, "version": sub.version}
    return described


def aggregated_core(registry: Registry) -> Object:
    """`/api`, aggregated."""
    versions = [_aggregated_version(registry, "", version) for version in registry.groups()[""]]
    return _aggregated([{"metadata": {}, "versions": versions}])


def aggregated_groups(registry: Registry) -> Object:
    """`/apis`, aggregated."""
    items = [
        {
            "metadata": {"name": name},
            "versions": [_aggregated_version(registry, name, version) for version in versions],
        }
        for name, versions in registry.groups().items()
        if name
    ]
    return _aggregated(items)


def _aggregated(items: list[Object]) -> Object:
    return {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items}


def _aggregated_version(registry: Registry, group_name: str, version: str) -> Object:
    resources = [_aggregated_resource(resource) for resource in registry.in_version(group_name, version)]
    return {"version": version, "resources": resources, "freshness": "Current"}


def _response_kind(kind: str, group_name: str = "", version: str = "") -> Object:
    return {"group": group_name, "version": version, "kind": kind}


def _aggregated_resource(resource: ResourceType) -> Object:
    custom = (resource.group, resource.version) if resource.custom is not None else ()
    described: Object = {
        "resource": resource.plural,
        "responseKind": _response_kind(resource.kind, *custom),
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular,
        "verbs": list(resource.verbs),
        **_other_names(resource),
    }
    if resource.subresources:
        described["subresources"] = [
            {
                "subresource": sub.name,
                "responseKind": _response_kind(sub.kind, *((sub.group, sub.version) if sub.group else custom)),
                "verbs": list(sub.verbs),
            }
            for sub in sorted(resource.subresources, key=lambda sub: sub.name)
        ]
    return described
