"""Classes of pods: pods with equal requests and constraints are evaluated once."""

from enum import StrEnum
from hashlib import sha256

import msgspec

from kaicore.errors import InvalidObject
from kaicore.rules.engine.constraints.claims.demands import (
    ANY_FLAVOR,
    NO_DEVICES,
    DeviceDemand,
    FlavorDemand,
    VolumeDemand,
)
from kaicore.rules.engine.constraints.pod_marks import carried_marks, claim_mark
from kaicore.rules.model.device import DeviceRequest
from kaicore.rules.model.gpu_share import GpuShare
from kaicore.rules.model.pod import Amounts, Container, ContainerKind, Pod, PodRules, QosClass, Toleration
from kaicore.rules.model.quantity import CPU, MAX_AMOUNT, MEMORY, PODS, is_native
from kaicore.rules.model.selector import Requirement
from kaicore.rules.numa.kubelet.requests import AlignedRequest, aligned_request, counted_request
from kaicore.rules.numa.own_policy import POLICY_ANNOTATION, RESOURCES_ANNOTATION, PodNumaPolicy, pod_numa_policy


class WorkKind(StrEnum):
    """The kinds of work that a node may fail: with devices, and without."""

    DEVICES = "devices"
    NO_DEVICES = "no devices"


def work_kind(requests: Amounts, *, devices: bool) -> WorkKind:
    """Return the kind of work that requests so much; `devices` where it asks for some by a share or by claims."""
    return WorkKind.DEVICES if devices or not all(map(is_native, requests)) else WorkKind.NO_DEVICES


class PolicyWork(msgspec.Struct, frozen=True, omit_defaults=True):
    """The facts by which policies tell pods of one class apart (`kaicore.policy.Work`).

    Attributes:
        labels: those of the pods that a policy declares which filters or scores nodes.
        annotations: likewise.
    """

    namespace: str
    queue: str
    priority: int
    preemptible: bool
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class PodClass(msgspec.Struct, frozen=True):
    """The common properties of all pods of a class.

    Attributes:
        key: identifies the class; equal on every machine.
        requests: what a node must have free for one of its pods, `pods: 1` included.
        aligned: what kubelets align of it.
        counted: what the counting rule looks at (`kaicore.rules.numa.screen`).
        gated: the pod's scheduling gates.
        unsupported: constraints that this version cannot honour.
        numa_policy: its own NUMA policy.
        malformed: what is wrong with its constraints, or with the annotations that ask for such a policy; it waits.
        rules: what its pods ask of nodes and of the pods near them.
        selected: marks of the selections of any class that select its pods.
        volumes: what its pods' volumes ask of a node.
        flavors: what the flavors of its pods' queue ask of a node.
        devices: what its pods' resource claims ask of a node.
        marks: what one of its pods leaves on the node that it is charged to
            (`kaicore.rules.engine.constraints.pod_marks`).
        gpu_share: the parts of GPUs that each of its pods gets.
        work: what policies know of its pods besides; None where no policy places pods.
        kept_off: names of the reservations on the nodes of which its pods must not start now.
    """

    key: str
    requests: Amounts
    aligned: AlignedRequest
    counted: AlignedRequest
    node_selector: dict[str, str] = {}
    node_affinity: tuple[tuple[Requirement, ...], ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    gated: tuple[str, ...] = ()
    unsupported: tuple[str, ...] = ()
    numa_policy: PodNumaPolicy | None = None
    malformed: str = ""
    rules: PodRules | None = None
    selected: tuple[str, ...] = ()
    volumes: VolumeDemand = VolumeDemand()
    flavors: FlavorDemand = ANY_FLAVOR
    marks: tuple[str, ...] = ()
    devices: DeviceDemand = NO_DEVICES
    gpu_share: GpuShare | None = None
    work: PolicyWork | None = None
    kept_off: tuple[str, ...] = ()

    @property
    def size(self) -> tuple[int, int, int]:
        """A measure of how hard a pod is to place: devices, CPUs, memory."""
        devices = sum(amount for resource, amount in self.requests.items() if not is_native(resource))
        return devices, self.requests.get(CPU, 0), self.requests.get(MEMORY, 0)

    @property
    def claimed(self) -> int:
        """The number of devices that a pod's claims take, without those that are offered as an extended resource."""
        wanted = [want for want in self.devices.wanted if not want.extended]
        return sum(_devices_of(request) for want in wanted for request in want.requests)

    @property
    def kind(self) -> WorkKind:
        """The kind of its pods' work."""
        return work_kind(self.requests, devices=self.gpu_share is not None or bool(self.devices.wanted))


def distinct(classes: list[PodClass]) -> list[PodClass]:
    """Return each of some classes once, in order; mostly it is one, and that is found out many times faster."""
    if classes and classes.count(classes[0]) == len(classes):
        return classes[:1]
    return [*{pod_class.key: pod_class for pod_class in classes}.values()]


def _devices_of(request: DeviceRequest) -> int:
    """Return how many devices a request takes; of alternatives, the first."""
    if request.alternatives:
        return _devices_of(request.alternatives[0])
    return 0 if request.admin else request.count


NO_VOLUMES = VolumeDemand()
#: Between a class's key and what tells its variants apart.
_VARIANT = "~"
#: Between that and what policies know of the pods, and which reservations keep them off nodes.
_OF_WORK = "~~"


class _Identity(msgspec.Struct, frozen=True):
    qos: QosClass
    containers: tuple[Container, ...]
    overhead: Amounts
    pod_resources: Amounts | None
    node_selector: dict[str, str]
    node_affinity: tuple[tuple[Requirement, ...], ...]
    tolerations: tuple[Toleration, ...]
    gated: tuple[str, ...]
    unsupported: tuple[str, ...]


_encoder = msgspec.msgpack.Encoder(order="deterministic")


def class_identity(pod: Pod) -> bytes:
    """Return bytes that are equal for two pods exactly when they are of one class."""
    identity = _encoder.encode(
        _Identity(
            pod.qos,
            pod.containers,
            pod.overhead,
            pod.pod_resources,
            pod.node_selector,
            pod.node_affinity,
            pod.tolerations,
            pod.scheduling_gates,
            pod.unsupported,
        )
    )
    if pod.rules is not None:
        identity += _encoder.encode(pod.rules)
    if pod.malformed:
        identity += _encoder.encode(pod.malformed)
    if pod.gpu_share is not None:
        identity += _encoder.encode(pod.gpu_share)
    annotations = [pod.annotations.get(name) for name in (POLICY_ANNOTATION, RESOURCES_ANNOTATION)]
    # Pods that ask for nothing keep the keys that are in the log already.
    return identity if annotations == [None, None] else identity + _encoder.encode(annotations)


def is_plain(pod: Pod) -> bool:
    """Tell whether a pod's class follows from its quality of service, its containers and its tolerations alone."""
    return not (
        pod.annotations
        or pod.node_selector
        or pod.overhead
        or pod.node_affinity
        or pod.scheduling_gates
        or pod.unsupported
        or pod.malformed
        or pod.pod_resources is not None
        or pod.rules is not None
        or pod.gpu_share is not None
    )


def pod_class(pod: Pod, identity: bytes) -> PodClass:
    """Return a pod's class, `identity` being its `class_identity`."""
    aligned = aligned_request(pod)
    numa_policy, malformed = None, pod.malformed
    try:
        numa_policy = pod_numa_policy(pod, aligned)
    except InvalidObject as error:
        malformed = malformed or f"{error.field}: {error.problem}: {error.value!r}"
    return PodClass(
        key=sha256(identity).hexdigest()[:12],
        requests=node_requests(pod),
        aligned=aligned,
        counted=counted_request(pod),
        node_selector=pod.node_selector,
        node_affinity=pod.node_affinity,
        tolerations=pod.tolerations,
        gated=pod.scheduling_gates,
        unsupported=pod.unsupported,
        numa_policy=numa_policy,
        malformed=malformed,
        rules=pod.rules,
        marks=carried_marks(pod.rules) if pod.rules is not None else (),
        gpu_share=pod.gpu_share,
    )


def variant(
    base: PodClass,
    selected: tuple[str, ...],
    volumes: VolumeDemand,
    flavors: FlavorDemand = ANY_FLAVOR,
    devices: DeviceDemand = NO_DEVICES,
) -> PodClass:
    """Return the class of those pods of a class that these selections select and that ask for the same besides.

    Labels are in no class: they matter only to selections, and so does the namespace. Pods of one class that no
    selection tells apart stay one class, whatever their labels. So it is with queues, and their flavors.
    """
    if not selected and volumes == NO_VOLUMES and flavors == ANY_FLAVOR and devices == NO_DEVICES:
        return base
    # Pods without flavors and claims keep the keys that are in the log already.
    parts: tuple[object, ...] = (selected, volumes) if flavors == ANY_FLAVOR else (selected, volumes, flavors)
    if devices != NO_DEVICES:
        parts = (*parts, devices)
    digest = sha256(_encoder.encode(parts)).hexdigest()[:8]
    key = f"{base.key}{_VARIANT}{digest}"
    claims = sorted({*volumes.exclusive, *volumes.together})
    marks = (*base.marks, *selected, *map(claim_mark, claims))
    return msgspec.structs.replace(
        base, key=key, selected=selected, volumes=volumes, flavors=flavors, marks=marks, devices=devices
    )


def of_home(pod: Pod, devices: DeviceDemand) -> PodClass:
    """Return the class as which room is kept for a pod that takes the place of another.

    Rules about other pods and volumes are asked of the pod once it is there.

    Args:
        devices: that its claims will ask for.
    """
    base = pod_class(pod, class_identity(pod))
    room = msgspec.structs.replace(base, key=f"{base.key}{_VARIANT}home", rules=None, marks=())
    return variant(room, (), NO_VOLUMES, devices=devices)


#: A mark with the namespace of a pod, for policies that ask which namespaces have pods on a node.
TENANT = "tenant/"


def with_work(base: PodClass, work: PolicyWork, *, tenants: bool) -> PodClass:
    """Return the class of those pods of a class of which policies know the same.

    Args:
        tenants: whether any of them asks which namespaces have pods on a node.
    """
    key = f"{base.key}{_OF_WORK}{sha256(_encoder.encode(work)).hexdigest()[:8]}"
    marks = (*base.marks, TENANT + work.namespace) if tenants else base.marks
    return msgspec.structs.replace(base, key=key, work=work, marks=marks)


def with_reservations(base: PodClass, kept_off: tuple[str, ...]) -> PodClass:
    """Return the class of those pods of a class that some reservations keep off their nodes."""
    digest = sha256(_encoder.encode(kept_off)).hexdigest()[:8]
    between = "" if _OF_WORK in base.key else _OF_WORK
    return msgspec.structs.replace(base, key=f"{base.key}{between}r{digest}", kept_off=kept_off)


def recorded_key(now: str, reported: str) -> str:
    """Return under which class the reasons of a pod were recorded last.

    Args:
        now: key of the class that the pod is of, whatever policies know of it.
        reported: key of the class as which it was decided on last, empty where it was not.
    """
    return reported if reported.startswith(now + _OF_WORK) else now


def key_without_work(key: str) -> str:
    """Return the key of the class that policies tell apart by what they know of its pods."""
    return key.partition(_OF_WORK)[0]


def base_key(key: str) -> str:
    """Return the key of the class that a variant is of."""
    return key.partition(_VARIANT)[0]


def node_requests(pod: Pod) -> Amounts:
    """Return what a pod takes of a node as a whole, as kube-scheduler counts it.

    The larger of the long-running containers' sum and the peak while init containers run beside the sidecars started
    before them; pod-level requests instead of that for CPU and memory; plus overhead; and one pod slot. However many
    containers ask for a resource, it is no more than any node is believed to have.
    """
    running: Amounts = {}
    peak: Amounts = {}
    for container in pod.containers:
        for resource, amount in container.requests.items():
            now = running.get(resource, 0) + amount
            peak[resource] = max(peak.get(resource, 0), now)
            if container.kind is not ContainerKind.INIT:
                running[resource] = now
    if pod.pod_resources is not None:
        for resource, amount in pod.pod_resources.items():
            if resource in (CPU, MEMORY) or resource.startswith("hugepages-"):
                peak[resource] = amount
    for resource, amount in pod.overhead.items():
        peak[resource] = peak.get(resource, 0) + amount
    requests = {resource: min(peak[resource], MAX_AMOUNT) for resource in sorted(peak) if peak[resource]}
    requests[PODS] = 1
    return requests
