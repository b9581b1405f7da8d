"""The objects of a cluster before any client has written to it."""

from kai_apiserver.objects import Object
from kai_apiserver.rest.backend import Backend, Operation, Target
from kai_apiserver.rest.writing import create

_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
_EVERYTHING = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}


def _initial() -> list[tuple[str, str, Object]]:
    """Group, plural and object of each thing."""
    namespaces: list[tuple[str, str, Object]] = [
        ("", "namespaces", {"metadata": {"name": name}}) for name in _NAMESPACES
    ]
    classes: list[tuple[str, str, Object]] = [
        (
            "scheduling.k8s.io",
            "priorityclasses",
            {"metadata": {"name": name}, "value": value, "description": description},
        )
        for name, value, description in (
            ("system-cluster-critical", 2_000_000_000, "For pods that the cluster needs but that may move."),
            ("system-node-critical", 2_000_001_000, "For pods that their node needs."),
        )
    ]
    roles: list[tuple[str, str, Object]] = [
        (
            "rbac.authorization.k8s.io",
            "clusterroles",
            {"metadata": {"name": "cluster-admin"}, "rules": [_EVERYTHING, {"nonResourceURLs": ["*"], "verbs": ["*"]}]},
        )
    ]
    return namespaces + classes + roles


def bootstrap(backend: Backend) -> None:
    """Create what is missing of the initial objects."""
    for group, plural, obj in _initial():
        resource = backend.registry.find(group, "v1", plural=plural)
        if backend.collection(resource).get(obj["metadata"]["name"]) is None:
            create(backend, Target(resource), given=obj, operation=Operation())
