"""A pod's own NUMA policy: its requirements on zones, independent of the node.

The kubelet's Topology Manager policy is the node's, for all pods alike. On a node with a policy that refuses no pod, a
pod may still want its devices together. It declares so by annotations, and is placed only where the kubelet will do so
by itself. The idea is KAI-Scheduler's (v0.17, `docs/developer/designs/numa-topology/README.md`, "v3"); the annotations
are ours.

| annotation | values | without it |
|---|---|---|
| `kai.scheduler/numa-policy` | `single-numa-node`, `restricted`, `best-effort` | no policy of its own |
| `kai.scheduler/numa-resources` | resource names with commas between | all that kubelets align of the pod |
| `kai.scheduler/numa-heal` | `true`, `false` | `false` |
"""

from collections.abc import Iterator

import msgspec

from kaicore.errors import InvalidObject
from kaicore.rules.model.node import TopologyPolicy
from kaicore.rules.model.pod import Pod
from kaicore.rules.numa.requests import AlignedRequest, aligned_request

POLICY_ANNOTATION = "kai.scheduler/numa-policy"
RESOURCES_ANNOTATION = "kai.scheduler/numa-resources"
HEAL_ANNOTATION = "kai.scheduler/numa-heal"

_POLICIES = (TopologyPolicy.SINGLE_NUMA_NODE, TopologyPolicy.RESTRICTED, TopologyPolicy.BEST_EFFORT)
_FLAGS = {"true": True, "false": False}


class PodNumaPolicy(msgspec.Struct, frozen=True):
    """What a pod asks for itself.

    Attributes:
        policy: `single-numa-node`: each container (the pod, on a node of pod scope) on one zone; `restricted`: on no
            more zones than it could ever do with; `best-effort`: the latter if there is a choice, else anything.
        resources: which of the pod's resources this is about, sorted; empty for all that kubelets align of it.
    """

    policy: TopologyPolicy
    resources: tuple[str, ...] = ()

    @property
    def binding(self) -> bool:
        """Whether nodes are left out for it; `best-effort` only ranks them."""
        return self.policy is not TopologyPolicy.BEST_EFFORT

    def concerns(self, resource: str) -> bool:
        """Tell whether the policy is about a resource."""
        return not self.resources or resource in self.resources

    def __str__(self) -> str:
        return f"{self.policy} for {', '.join(self.resources)}" if self.resources else str(self.policy)


def pod_numa_policy(pod: Pod, aligned: AlignedRequest) -> PodNumaPolicy | None:
    """Return the policy that a pod's annotations ask for, None when they ask for none.

    Args:
        pod: the pod.
        aligned: what kubelets align of it.

    Raises:
        InvalidObject: the annotations ask for something that there is not.
    """
    text, names = pod.annotations.get(POLICY_ANNOTATION), pod.annotations.get(RESOURCES_ANNOTATION)
    if text is None and names is None:
        return None
    if text not in _POLICIES:
        raise _invalid(pod, POLICY_ANNOTATION, text, f"must be one of {', '.join(_POLICIES)}")
    resources: tuple[str, ...] = ()
    if names is not None:
        resources = tuple(sorted({name.strip() for name in names.split(",")}))
        if "" in resources:
            raise _invalid(pod, RESOURCES_ANNOTATION, names, "must be resource names with commas between")
        if not set(resources).intersection(aligned.resources):
            why = "names nothing that kubelets align of this pod"
            raise _invalid(pod, RESOURCES_ANNOTATION, names, f"{why} ({', '.join(aligned.resources) or 'nothing'})")
    return PodNumaPolicy(TopologyPolicy(text), resources)


def wants_healing(pod: Pod) -> bool:
    """Tell whether a pod asks to be placed anew when its own policy is missed; anything but `true` is no."""
    return _FLAGS.get(pod.annotations.get(HEAL_ANNOTATION, "false"), False)


def malformed_annotations(pod: Pod) -> Iterator[InvalidObject]:
    """Yield what is wrong with a pod's NUMA annotations.

    A pod whose policy or resources are malformed waits; a malformed wish to be healed is none.
    """
    if not pod.annotations:
        return
    try:
        pod_numa_policy(pod, aligned_request(pod))
    except InvalidObject as error:
        yield error
    flag = pod.annotations.get(HEAL_ANNOTATION)
    if flag is not None and flag not in _FLAGS:
        yield _invalid(pod, HEAL_ANNOTATION, flag, "must be true or false")


def _invalid(pod: Pod, annotation: str, value: str | None, why: str) -> InvalidObject:
    return InvalidObject(f"Pod {pod.subject}", f"metadata.annotations[{annotation}]", value or "", why)
