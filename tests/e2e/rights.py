"""The rights of a cluster's accounts by their roles, one by one: user, API group, resource, verb."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from tests.e2e.cluster import access_manifests

Json = dict[str, Any]


class Right(NamedTuple):
    """One verb on one resource, which may be a subresource (`pods/binding`)."""

    user: str
    group: str
    resource: str
    verb: str


def rights_of(user: str, rules: Iterable[Json]) -> Iterator[Right]:
    for rule in rules:
        for group in rule.get("apiGroups") or ():
            for resource in rule.get("resources") or ():
                for verb in rule["verbs"]:
                    yield Right(user, group, resource, verb)


def granted() -> set[Right]:
    """The rights that the production manifests give to the services' accounts."""
    documents = list(access_manifests())
    roles = {document["metadata"]["name"]: document for document in documents if document["kind"] == "ClusterRole"}
    return {
        right
        for document in documents
        if document["kind"] == "ClusterRoleBinding"
        # The operator runs in tests of its own (tests/integration/operator).
        for subject in document["subjects"]
        if subject["name"] != "kai-operator"
        for right in rights_of(
            f"system:serviceaccount:{subject['namespace']}:{subject['name']}",
            roles[document["roleRef"]["name"]]["rules"],
        )
    }


def used(counted: Json) -> set[Right]:
    """The rights that the simulated API server tells of as used (`GET /simulator/rights`)."""
    return {Right(use["user"], use["group"], use["resource"], use["verb"]) for use in counted["allowed"]}
