"""The table of dialects: a new one is its module and its line here.

The order counts where a pod has name labels of several dialects: the first one has it.
"""

from collections.abc import Callable, Iterable, Iterator

from kaicore.errors import InvalidObject
from kaicore.rules.groups.dialects import apps, grove, job, jobset, kubeflow, leader_worker_set, ray, volcano
from kaicore.rules.groups.dialects.dialect import Dialect, NodesFor, WorkloadKind
from kaicore.rules.objects.made import Made, take_free_name
from kaicore.rules.objects.mappings import Object, kind_of, spec_of

DIALECTS: tuple[Dialect, ...] = (
    apps.DIALECT,
    job.DIALECT,
    volcano.DIALECT,
    leader_worker_set.DIALECT,
    jobset.DIALECT,
    ray.DIALECT,
    kubeflow.DIALECT,
    grove.DIALECT,
)

#: Every kind of workloads, by its name with its API group.
WORKLOADS: dict[str, WorkloadKind] = {one.kind: one for dialect in DIALECTS for one in dialect.workloads}

#: Kinds of owners of pods, or of owners of pods, that are groups.
OWNER_KINDS = frozenset(one.kind for one in WORKLOADS.values() if one.normalize is not None and one.made is not None)

#: Labels by which pods name their object, and its kind.
NAME_LABELS = tuple((one.name_label, one.kind) for one in WORKLOADS.values() if one.name_label)

#: Gates of controllers, with the kind of the object that their pods belong to.
GATES = tuple((one.kind, one.gate) for one in WORKLOADS.values() if one.gate is not None)


def workload_of(owner: Object) -> WorkloadKind | None:
    """Return the kind of an object; None for one that is no workload."""
    return WORKLOADS.get(kind_of(owner["apiVersion"], owner["kind"]))


def is_owner(api_version: str, kind: str) -> bool:
    """True if objects of a kind stand for pods that `expand` can make."""
    workload = workload_of({"apiVersion": api_version, "kind": kind})
    return workload is not None and (workload.made is not None or workload.made_per_node is not None)


def expand(owner: Object, *, nodes_for: NodesFor, between: Callable[[Object], None] = lambda _: None) -> Iterator[Made]:
    """Yield the pods that the controllers would make for an owner, in the order in which they would.

    Each is made when it is asked for: a few lines can stand for more pods than there is room for.

    Names and uids are made of the owner's, so the same owner always gives the same pods.

    Args:
        owner: an object of a kind that `is_owner` knows, with name, namespace and uid; it stays as it is.
        nodes_for: tells which nodes a pod of a DaemonSet may run on.
        between: is given each object that is made on the way to the pods, such as the Jobs of a JobSet.
    """
    names = set[str]()
    for part in _made(owner, nodes_for):
        if part.object["kind"] == "Pod":
            if part.through is not None:
                between(part.through)
            take_free_name(part.object, names)
            yield part
            continue
        between(part.object)
        if not is_owner(part.object["apiVersion"], part.object["kind"]):
            continue
        try:
            for pod in expand(part.object, nodes_for=nodes_for, between=between):
                yield Made(pod.object, part.field_in_owner(pod.spec_field))
        except InvalidObject as error:
            subject = f"{owner['kind']} {owner['metadata']['namespace']}/{owner['metadata']['name']}"
            raise InvalidObject(subject, part.field_in_owner(error.field), error.value, error.problem) from error


def _made(owner: Object, nodes_for: NodesFor) -> Iterable[Made]:
    workload = workload_of(owner)
    assert workload is not None
    policy = workload.run_policy(spec_of(owner))
    if policy is not None and policy.flag("suspend"):
        return ()
    if workload.made_per_node is not None:
        return workload.made_per_node(owner, nodes_for)
    assert workload.made is not None
    return workload.made(owner)
