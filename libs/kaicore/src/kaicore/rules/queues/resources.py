"""The resources that queues count: each under its own name, and all kinds of GPUs together as `gpu`.

KAI's Queues give quotas of `cpu`, `memory` and `gpu`; Kueue's of resources by their full names. Work is counted both
ways, and a queue looks at those that it names.
"""

import re
from functools import lru_cache

from kaicore.rules.model.gpu_share import GPU as WHOLE_GPU
from kaicore.rules.model.gpu_share import WHOLE
from kaicore.rules.model.pod import Amounts

#: All kinds of whole GPUs together; a MIG instance counts its compute slices, as in KAI.
GPU = "gpu"

#: Parts of GPUs, in thousandths, among the amounts of work; a tree that counts them adds them to GPUs. No node has it.
SHARED_GPU = "kai.scheduler/thousandths-of-a-gpu"
#: To what parts of GPUs are added.
SHARED_IN = frozenset({GPU, WHOLE_GPU})

_MIG = re.compile(r"[^/]+/mig-(\d{1,2})g\.")


def counted(amounts: Amounts) -> Amounts:
    """Return amounts as queues count them: with `gpu`, where they hold any GPU."""
    gpus = gpus_of(amounts)
    return {**amounts, GPU: gpus} if gpus else dict(amounts)


def gpus_of(amounts: Amounts) -> int:
    """Return how many GPUs amounts hold, of all kinds."""
    return sum(amount * gpus_per_unit(resource) for resource, amount in amounts.items())


def thousandths_of_gpus(amounts: Amounts) -> int:
    """Return how many thousandths of GPUs amounts hold, whole ones and parts."""
    return gpus_of(amounts) * WHOLE + amounts.get(SHARED_GPU, 0)


def without_parts(amounts: Amounts) -> Amounts:
    """Return amounts as nodes know them, without parts of GPUs."""
    return {name: amount for name, amount in amounts.items() if name != SHARED_GPU}


@lru_cache(maxsize=4096)
def gpus_per_unit(resource: str) -> int:
    """Return how many GPUs one unit of a resource counts as: 1 for `nvidia.com/gpu`, 3 for `nvidia.com/mig-3g.20gb`."""
    domain, _, name = resource.rpartition("/")
    if not domain:
        return 0
    if name == GPU:
        return 1
    match = _MIG.match(resource)
    return int(match[1]) if match else 0
