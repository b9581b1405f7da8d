"""Objects of workload APIs as people write them, and what becomes of them."""

from typing import Any

import msgspec
from kaicore.errors import Lost, unheard
from kaicore.kube.kinds.table import group_kind
from kaicore.kube.normalize.pod import normalize_pod
from kaicore.kube.wire.resources import PODS
from kaicore.rules.events import payloads
from kaicore.rules.model.group import Group, GroupSource, PodSet
from kaicore.rules.model.pod import Owner, Pod, PriorityClass
from kaicore.yaml_text import load_yaml_all

from tests.given.cluster.factory import Cluster
from tests.given.work.losses import refuse

Json = dict[str, Any]


def documents(text: str) -> list[Json]:
    """Objects as they come from an API server: with namespace and uid."""
    filled = []
    for document in load_yaml_all(text):
        metadata = {"namespace": "default", "uid": f"uid-{document['metadata']['name']}", "resourceVersion": "1"}
        filled.append({**document, "metadata": metadata | document["metadata"]})
    return filled


def source(text: str) -> GroupSource:
    """The one object of a text, as a source of groups; nothing of it makes no sense."""
    (document,) = documents(text)
    return source_of(document, refuse)


def source_of(document: Json, lost: Lost = unheard) -> GroupSource:
    kind = group_kind(document["apiVersion"], document["kind"])
    assert kind is not None, document["kind"]
    model = kind.normalize(kind.decode(msgspec.json.encode(document)), lost)
    assert isinstance(model, GroupSource)
    return model


def job(
    cluster: Cluster,
    name: str = "train",
    *,
    spec: Json | None = None,
    annotations: Json | None = None,
    **status: int | None,
) -> Owner:
    """The watcher sees a Job; it owns pods."""
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", "annotations": annotations}
    document = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec or {}, "status": status}
    source = source_of(document)
    cluster.record(f"group/{source.key}", payloads.GroupSourceObserved(source))
    return Owner("Job", name, f"uid-{name}", "batch/v1")


def read_pod(document: Json) -> Pod:
    """A pod of a text; it asks for nothing unless it says so."""
    given = {**document, "spec": {"schedulerName": "kai-ledger", "containers": [{"name": "main"}]} | document["spec"]}
    return normalize_pod(PODS.decode(msgspec.json.encode(given)))


class World(Cluster):
    """A cluster to which objects are applied as text."""

    def apply(self, text: str) -> None:
        """See the objects of a text, in its order."""
        for document in documents(text):
            match document["kind"]:
                case "Pod":
                    self.add_pod(read_pod(document))
                case "PriorityClass":
                    name, value = document["metadata"]["name"], document["value"]
                    observed = PriorityClass(uid=name, name=name, resource_version="1", value=value)
                    self.record(f"priorityclass/{name}", payloads.PriorityClassObserved(observed))
                case _:
                    source = source_of(document)
                    self.record(f"group/{source.key}", payloads.GroupSourceObserved(source))

    def remove(self, kind: str, name: str) -> None:
        """See an object go."""
        source = self.state.group_table.sources[f"{kind}/default/{name}"]
        gone = payloads.GroupSourceDeleted(kind, source.uid, source.namespace, source.name)
        self.record(f"group/{source.key}", gone)

    def problem_of(self, pod: str) -> str:
        """The reason why the pods that a pod starts with are unknown; empty if they are known."""
        problem = self.state.pods[f"uid-{pod}"].group_problem
        return problem.code if problem is not None else ""

    def group_of(self, pod: str) -> Group:
        return self.state.groups[self.state.pods[f"uid-{pod}"].group]


def shape(sets: tuple[PodSet, ...]) -> str:
    """A tree in one line: `(a>=1 (b>=2 c>=3)/1)/all>=4`; `/n` is how many sub-groups, `>=n` how many pods."""
    below: dict[str, list[PodSet]] = {}
    for one in sets[1:]:
        below.setdefault(one.parent, []).append(one)

    def written(one: PodSet) -> str:
        least = f">={one.min_pods}" if one.min_pods else ""
        if one.name not in below:
            return f"{one.name}{least}"
        inside = " ".join(written(child) for child in below[one.name])
        return f"{one.name}({inside})/{'all' if one.min_sets is None else one.min_sets}{least}"

    return written(sets[0])
