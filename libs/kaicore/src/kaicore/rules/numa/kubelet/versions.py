"""Differences between kubelet versions, and the version that a node is assumed to follow.

A node's kubelet is modelled by its minor version (`status.nodeInfo.kubeletVersion`), by the features that it declares
(`status.declaredFeatures`, since 1.35), and by its configured or reported feature gates. A node that reports no version
follows the reference, 1.36, as most recorded decisions do. A node newer than all versions known here follows the
newest. `CHANGES` names each difference with its source, and `docs/reference/kubelets.md` is made from it.

Source: Kubernetes v1.31.14 to v1.37.2, `pkg/kubelet/cm` and `pkg/features/kube_features.go`, and the changes merged for
1.38 until 2026-11.
"""

import re
from dataclasses import dataclass
from enum import StrEnum

from kaicore.rules.model.node import Node

#: Of the kubelet that most recorded decisions come from; assumed where a node tells no version.
REFERENCE_MINOR = 36

#: The versions with known differences.
OLDEST_MINOR = 26
NEWEST_MINOR = 38

_VERSION = re.compile(r"v?1\.(\d{1,4})(?!\d)")


class PodLevel(StrEnum):
    """The aligned part of a pod with resources of its own, besides devices.

    `CONTAINERS`: what its containers ask for, as of any pod. `NOTHING`. `BUDGET`: under pod scope what the pod asks for
    as a whole, else its containers that ask for as much as they are limited to. `REFUSED`: it takes no such pod.
    """

    CONTAINERS = "containers"
    NOTHING = "nothing"
    BUDGET = "budget"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Gate:
    """A kubelet's feature gate.

    Attributes:
        since: the first minor version that has it.
        default_on: the first that has it on by default; None for none so far.
    """

    since: int
    default_on: int | None = None

    def is_default(self, minor: int) -> bool:
        """Tell whether a version has it on by default."""
        return self.default_on is not None and minor >= self.default_on


#: The gates on which an admission, or what a running pod holds, depends.
GATES = {
    "PodLevelResources": Gate(32, 34),
    # On by default in betas of 1.37; switched off before its release (kubernetes/kubernetes#141209).
    "PodLevelResourceManagers": Gate(36),
    "InPlacePodVerticalScaling": Gate(27, 33),
    "InPlacePodVerticalScalingExclusiveCPUs": Gate(32),
    "InPlacePodVerticalScalingExclusiveMemory": Gate(34),
}

#: Features that a node declares under another name than their gate's, and gates that must be on for them.
_DECLARED = {"InPlacePodLevelResourcesVerticalScaling": "PodLevelResources"}


class Matter(StrEnum):
    """The subject of a change: a pod's admission, its place, a running pod's holdings, or a display."""

    VERDICT = "verdict"
    ZONES = "zones"
    RUNNING = "running pods"
    SHOWN = "what is shown"


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between kubelets' versions.

    Attributes:
        since: the first minor version that does it.
        matter: what it is about.
        what: that versions from there on do, and those before did.
        source: the upstream change.
        only: the setting or gate without which it does not show; empty for none.
    """

    since: int
    matter: Matter
    what: str
    source: str
    only: str = ""


#: Differences of kubelets 1.26 to 1.38, oldest first; `tests/fidelity/test_versions.py` has one test or more for each.
CHANGES = (
    Change(
        32,
        Matter.VERDICT,
        "Memory is refused on several zones one of which serves another group; before, such zones were regrouped.",
        "kubernetes/kubernetes#123443",
        "memory manager Static",
    ),
    Change(
        32,
        Matter.ZONES,
        "CPUs of one uncore cache are taken together. Which share one nothing publishes: how CPUs of several zones are "
        "split is left open, as ever.",
        "KEP-4800",
        "option prefer-align-cpus-by-uncorecache",
    ),
    Change(
        33,
        Matter.RUNNING,
        "Pods are resized in place. A Guaranteed pod never is (Infeasible) beside a static CPU or memory manager. "
        "It does not matter which resource changes, or whether its CPUs are exclusive.",
        "KEP-1287, kubernetes/kubernetes#128287, `pkg/kubelet/kubelet.go`",
        "gate InPlacePodVerticalScalingExclusiveCPUs off (the default)",
    ),
    Change(
        34,
        Matter.RUNNING,
        "A Guaranteed pod is resized beside a static CPU manager where its CPUs stay as they are. Beside a static "
        "memory manager it is where its memory does. Before, it was not resized at all.",
        "KEP-1287, `pkg/kubelet/allocation/allocation_manager.go`",
        "gates InPlacePodVerticalScalingExclusiveCPUs and InPlacePodVerticalScalingExclusiveMemory off (the default)",
    ),
    Change(
        34,
        Matter.VERDICT,
        "Of a pod with resources of its own neither CPUs nor memory are aligned; before, those of its containers were.",
        "kubernetes/kubernetes#133279, KEP-2837",
        "gate PodLevelResources (on by default)",
    ),
    Change(
        34,
        Matter.VERDICT,
        "A pod with resources of its own is refused (PodLevelResourcesNotSupported). Before it is not: where it counts "
        "as Guaranteed the Static memory manager refuses most of its containers that ask for no memory.",
        "KEP-2837, `pkg/kubelet/lifecycle/features_linux.go`",
        "gate PodLevelResources off",
    ),
    Change(
        34,
        Matter.SHOWN,
        "podresources lists no pods that have ended; before, it listed them until they were deleted.",
        "gate KubeletPodResourcesListUseActivePods, kubernetes/kubernetes#132028",
    ),
    Change(
        34,
        Matter.SHOWN,
        "podresources serves Get, of one pod.",
        "KEP-3695, kubernetes/kubernetes#132940",
        "gate KubeletPodResourcesGet (on by default)",
    ),
    Change(
        35,
        Matter.RUNNING,
        "A resize of exclusive CPUs is Deferred, for its hints are of another number of CPUs than the container has; "
        "before, the first one was taken, the CPUs stayed, and the next was Deferred.",
        "KEP-1287, `pkg/kubelet/cm/cpumanager/policy_static.go`",
        "gate InPlacePodVerticalScalingExclusiveCPUs, policies restricted and single-numa-node",
    ),
    Change(
        36,
        Matter.ZONES,
        "Devices give hints over the zones that have some; before, over all zones.",
        "kubernetes/kubernetes#138244",
    ),
    Change(
        36,
        Matter.VERDICT,
        "Of a pod with resources of its own, pod scope aligns these as a whole. Container scope aligns the containers "
        "that are limited to what they ask for. Refused where such containers leave nothing to others "
        "(EmptyPodSharedPoolError).",
        "KEP-5526, kubernetes/kubernetes#134768",
        "gate PodLevelResourceManagers (off by default; so 1.37 too since kubernetes/kubernetes#141209)",
    ),
    Change(
        37,
        Matter.ZONES,
        "CPUs that are spread over zones stay on one socket where they can.",
        "kubernetes/kubernetes#139778",
        "options distribute-cpus-across-numa and align-by-socket",
    ),
    Change(
        37,
        Matter.VERDICT,
        "Of a pod with resources of its own, container scope does not ask the memory manager for containers without a "
        "share; before, it was asked for nothing, and refused it on several zones in use otherwise, or where no zones "
        "were chosen.",
        "KEP-5526, `pkg/kubelet/cm/memorymanager/policy_static.go`",
        "gate PodLevelResourceManagers, memory manager Static",
    ),
    Change(
        37,
        Matter.SHOWN,
        "podresources shows CPUs and memory of a pod as a whole; containers show what is theirs alone.",
        "kubernetes/kubernetes#138738",
        "gate PodLevelResourceManagers",
    ),
    Change(
        37,
        Matter.SHOWN,
        "State files of CPUs and memory carry their contents twice, the second with a checksum of its own.",
        "KEP-5554, CPUManagerCheckpointV4 and MemoryManagerCheckpointV3",
    ),
    Change(
        37,
        Matter.RUNNING,
        "A resize of exclusive CPUs is taken and the CPUs stay, under every policy. After a restart of the kubelet the "
        "pod is admitted again with another number of CPUs than it has, which restricted and single-numa-node refuse.",
        "KEP-5554, `pkg/kubelet/cm/cpumanager/policy_static.go`",
        "gate InPlacePodVerticalScalingExclusiveCPUs",
    ),
    Change(
        38,
        Matter.ZONES,
        "CPUs are spread over all zones of the affinity mask; before, over as few as have them.",
        "kubernetes/kubernetes#139456",
        "option distribute-cpus-across-numa",
    ),
    Change(
        38,
        Matter.RUNNING,
        "Exclusive CPUs follow a resize in place, and keep those that the container started with; before, the CPUs "
        "stayed.",
        "KEP-5554",
        "gate InPlacePodVerticalScalingExclusiveCPUs (off by default)",
    ),
    Change(
        38,
        Matter.RUNNING,
        "A device is given to one pod only; before, the next pod could get the same where podresources was listed "
        "while its plugin was asked to allocate it, after another pod had ended. No verdict is predicted otherwise: it "
        "depends on that instant (decision 0450).",
        "kubernetes/kubernetes#137534",
    ),
)


class ModelBasis(StrEnum):
    """The reason why a node follows the rules of a version."""

    REPORTED = "reported"
    NO_VERSION = "no-version"
    NEWER = "newer"
    OLDER = "older"


@dataclass(frozen=True, slots=True)
class KubeletModel:
    """The version of the rules that a node follows.

    Attributes:
        minor: of the version, 36 for 1.36.
        version: as the node reports it.
        gates_on: gates of `GATES` that the node declares to be on.
    """

    minor: int
    basis: ModelBasis
    version: str = ""
    gates_on: frozenset[str] = frozenset()

    def text(self) -> str:
        """Say which model it is, and why."""
        why = {
            ModelBasis.REPORTED: f"it reports {self.version}",
            ModelBasis.NO_VERSION: f"it reports {self.version!r}, which is no version",
            ModelBasis.NEWER: f"the newest that is known here; it reports {self.version}",
            ModelBasis.OLDER: f"the oldest that is known here; it reports {self.version}",
        }[self.basis]
        text = f"as kubelet 1.{self.minor} ({why if self.version else 'it reports no version'})"
        declared = f", with {', '.join(sorted(self.gates_on))}, which it declares" if self.gates_on else ""
        return text + declared


def kubelet_model(node: Node | None) -> KubeletModel:
    """Return which version's rules a node's kubelet is taken to follow."""
    if node is None:
        return KubeletModel(REFERENCE_MINOR, ModelBasis.NO_VERSION)
    declared = frozenset(_DECLARED.get(name, name) for name in node.declared_features).intersection(GATES)
    return versioned_model(node.kubelet_version, gates_on=declared)


def versioned_model(version: str, *, gates_on: frozenset[str] = frozenset()) -> KubeletModel:
    """Return the model of a version such as `v1.36.2`. `gates_on`: feature gates that are known to be on."""
    match = _VERSION.match(version)
    if match is None:
        return KubeletModel(REFERENCE_MINOR, ModelBasis.NO_VERSION, version, gates_on)
    minor = int(match[1])
    if minor > NEWEST_MINOR:
        return KubeletModel(NEWEST_MINOR, ModelBasis.NEWER, version, gates_on)
    if minor < OLDEST_MINOR:
        return KubeletModel(OLDEST_MINOR, ModelBasis.OLDER, version, gates_on)
    return KubeletModel(minor, ModelBasis.REPORTED, version, gates_on)
