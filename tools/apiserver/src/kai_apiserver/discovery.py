"""Discovery: which groups, versions and resources there are, in the old form and in the aggregated one."""

from kai_apiserver.objects import Object
from kai_apiserver.resources import Registry, ResourceType, Subresource

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
    """`/api/v1` or `/apis/<group>/<version>`.

    Raises:
        StatusError: 404 if there is no such group and version.
    """
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


def _resource(resource: ResourceType) -> Object:
    described: Object = {
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": list(resource.verbs),
    }
    if resource.short_names:
        described["shortNames"] = list(resource.short_names)
    if resource.categories:
        described["categories"] = list(resource.categories)
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
    }
    if resource.short_names:
        described["shortNames"] = list(resource.short_names)
    if resource.categories:
        described["categories"] = list(resource.categories)
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
