"""Shares of a GPU: what a pod asks for, and what a placed pod holds.

A part is counted in thousandths of a GPU. A request in MiB becomes a part of each node's GPU by the node's label
`nvidia.com/gpu.memory`. KAI-Scheduler cuts the label to whole hundreds of MiB, so this module does as well
(`pkg/scheduler/api/node_info/node_info.go`, getNodeGpuMemory). A part of it is rounded up.
"""

from collections.abc import Mapping
from functools import lru_cache

import msgspec

from kaicore.rules.objects.gpu_sharing import (
    GPU,
    GPU_GROUP_LABEL,
    GPU_GROUP_LABEL_PREFIX,
    GPU_INDEX_ANNOTATION,
    RESERVATION_NAMESPACE,
)
from kaicore.rules.objects.wire import number_in

__all__ = [
    "GPU",
    "GPU_GROUP_LABEL",
    "GPU_GROUP_LABEL_PREFIX",
    "GPU_INDEX_ANNOTATION",
    "GPU_MEMORY_LABEL",
    "NOT_SHARED",
    "RESERVATION_NAMESPACE",
    "SHARED_GPU",
    "SHARED_IN",
    "WHOLE",
    "GpuPart",
    "GpuShare",
    "expected_parts",
    "gpu_memory",
    "gpus_text",
    "group_labels",
    "groups_of",
    "has_mig_devices",
    "in_thousandths",
    "reservation_name",
]

#: A GPU in thousandths.
WHOLE = 1000
#: Parts of GPUs, in thousandths, among the amounts of work; whoever counts them adds them to GPUs. No node has it.
SHARED_GPU = "kai.scheduler/thousandths-of-a-gpu"
#: Begins the names, among waiting amounts, of parts that depend on the memory of GPUs; counted are the GPUs.
_BY_MEMORY = f"{SHARED_GPU}/"
#: To what parts of GPUs are added: all kinds together, and NVIDIA's.
SHARED_IN = frozenset({"gpu", GPU})
#: On a node: the memory of each of its GPUs in MiB; in bytes where it is that large, as an older feature discovery did.
GPU_MEMORY_LABEL = "nvidia.com/gpu.memory"
#: On a node: the model of its GPUs; with the profile where MIG devices stand for them, as `A100-SXM4-40GB-MIG-1g.5gb`.
GPU_PRODUCT_LABEL, _MIG = "nvidia.com/gpu.product", "-MIG-"
#: In the place of the memory of a node's GPUs: no pod has a part of them.
NOT_SHARED = -1
_MIB = 1 << 20
_ROUNDED_TO_MIB = 100
#: A name has at most so many characters.
_MOST_NAME = 253


class GpuShare(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Parts of different GPUs of one node: of each the larger one of `milli` and `mib`, which are not both 0.

    Attributes:
        milli: thousandths of each GPU, at most 999; 0 where only memory is asked for.
        mib: memory of each GPU, in MiB; 0 where none is asked for.
        devices: of how many GPUs it has a part.
        container: the container that gets them; empty for the first one that is no init container.
    """

    milli: int = 0
    mib: int = 0
    devices: int = 1
    container: str = ""

    def part_of(self, memory: int) -> int:
        """Return the part of each GPU on a node, in thousandths; more than `WHOLE` where a GPU is too small.

        Args: memory: of each GPU of the node, in MiB (`gpu_memory`); 0 where that is not known, or `NOT_SHARED`.
        """
        if memory == NOT_SHARED:
            return WHOLE + 1
        if not self.mib:
            return self.milli
        return max(-(-self.mib * WHOLE // memory), self.milli) if memory else WHOLE + 1

    def expected(self, memory: int) -> int:
        """Return what counts of GPUs in all before a node is known, in thousandths: a whole GPU of each at most.

        KAI-Scheduler means the same (`pkg/scheduler/plugins/proportion/proportion.go`), but its smallest GPU never has
        more than 100 MiB (`pkg/scheduler/cache/cluster_info/cluster_info.go`, snapshotNodes).

        Args: memory: of the smallest GPU that there is, in MiB; 0 where none is known.
        """
        return min(self.part_of(memory), WHOLE) * self.devices

    @property
    def waiting(self) -> dict[str, int]:
        """The amounts as which it counts while no node is known, for `expected_parts`."""
        if not self.mib:
            return {SHARED_GPU: self.milli * self.devices}
        return {f"{_BY_MEMORY}{self.mib}/{self.milli}": self.devices}

    def __str__(self) -> str:
        amount = f"{self.mib} MiB of a GPU's memory" if self.mib else f"{gpus_text(self.milli)} of a GPU"
        if self.mib and self.milli:
            amount += f" (at least {gpus_text(self.milli)} of it)"
        return amount if self.devices == 1 else f"{amount} on each of {self.devices} GPUs"


class GpuPart(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A placed pod's holding of one GPU.

    Attributes:
        group: the GPU group, which stands for one GPU that is opened for sharing.
        milli: thousandths of the GPU.
        mib: of its memory as the pod asked for it, in MiB; 0 where it asked for a fraction.
    """

    group: str
    milli: int
    mib: int = 0


def gpu_memory(labels: Mapping[str, str]) -> int:
    """Return the memory of each GPU of a node in MiB, by its labels; 0 where they do not tell it."""
    text = labels.get(GPU_MEMORY_LABEL)
    return 0 if text is None else _memory(text)


@lru_cache(maxsize=256)
def _memory(text: str) -> int:
    mib = number_in(text, digits=18) or 0
    if mib >= _MIB:
        mib //= _MIB
    return mib - mib % _ROUNDED_TO_MIB


def expected_parts(amounts: Mapping[str, int], memory: int) -> dict[str, int]:
    """Return amounts of waiting work with the parts of GPUs as what they are expected to be.

    Args:
        amounts: perhaps with sums of `GpuShare.waiting` among them.
        memory: of the smallest GPU that there is, in MiB; 0 where none is known.
    """
    expected = {name: amount for name, amount in amounts.items() if not name.startswith(_BY_MEMORY)}
    if len(expected) < len(amounts):
        parts = expected.get(SHARED_GPU, 0)
        for name in amounts.keys() - expected.keys():
            mib, milli = map(int, name.removeprefix(_BY_MEMORY).split("/"))
            parts += GpuShare(milli, mib).expected(memory) * amounts[name]
        expected[SHARED_GPU] = parts
    return expected


def in_thousandths(amounts: Mapping[str, int], memory: int = 0) -> dict[str, int]:
    """Return amounts with GPUs in thousandths, the parts of GPUs added to them.

    Args: see `expected_parts`.
    """
    amounts = expected_parts(amounts, memory)
    parts = amounts.get(SHARED_GPU, 0)
    done = {name: amount for name, amount in amounts.items() if name != SHARED_GPU}
    return done | {name: done.get(name, 0) * WHOLE + parts for name in SHARED_IN if parts or name in done}


def has_mig_devices(labels: Mapping[str, str]) -> bool:
    """Tell whether what a node offers as GPUs are MIG devices (`mig.strategy` single), which are shared no further."""
    return _MIG in labels.get(GPU_PRODUCT_LABEL, "")


def gpus_text(milli: int) -> str:
    """Return thousandths of a GPU as a decimal number: 300 is `0.3`."""
    whole, rest = divmod(milli, WHOLE)
    return f"{whole}.{rest:03}".rstrip("0").rstrip(".")


def reservation_name(node: str, group: str) -> str:
    """Return the name of the reservation pod of a GPU group."""
    ending = group[:8]
    return f"gpu-reservation-{node}"[: _MOST_NAME - len(ending) - 1].rstrip("-.") + f"-{ending}"


def groups_of(labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return the GPU groups that a pod's labels name, in order."""
    named = {value for key, value in labels.items() if key.startswith(GPU_GROUP_LABEL_PREFIX) and value}
    one = labels.get(GPU_GROUP_LABEL)
    return tuple(sorted(named | {one} if one else named))


def group_labels(parts: tuple[GpuPart, ...]) -> dict[str, str]:
    """Return the labels of a pod that holds parts."""
    if len(parts) == 1:
        return {GPU_GROUP_LABEL: parts[0].group}
    return {f"{GPU_GROUP_LABEL_PREFIX}{part.group}": part.group for part in parts}
