"""Counts over a whole log: what reports and metrics say of decisions and of what became of them."""

import msgspec


class Counters(msgspec.Struct):
    """Counters since the log's first event.

    Attributes:
        placed: decisions.
        bound: of them, those that the API server took.
        bind_failures: by reason.
        rejections: kubelets' refusals by reason.
        reselections: decisions for a node whose kubelet had rejected a pod of the same class before.
        agreement: observed placements of pods with a prediction, by how they compare with it (`Agreement`).
        reported: observations of exporters.
        misses: predictions that kubelets did not follow, by node and there by policy and cause (`policy/cause`).
        disbelieved: observations of more than the pod or the zone can hold, by node.
        cycles: recorded cycles.
        missed: pods that were observed on other zones than their own NUMA policy asks for.
        heal_requests: decisions to evict one of them.
        evictions_decided: decisions to evict a pod for another's sake, by reason.
        evictions: of all those, the ones that the API server took.
        eviction_failures: the ones that it did not, by reason.
    """

    placed: int = 0
    bound: int = 0
    bind_failures: dict[str, int] = {}
    rejections: dict[str, int] = {}
    reselections: int = 0
    agreement: dict[str, int] = {}
    reported: int = 0
    misses: dict[str, dict[str, int]] = {}
    disbelieved: dict[str, int] = {}
    cycles: int = 0
    missed: int = 0
    heal_requests: int = 0
    evictions_decided: dict[str, int] = {}
    evictions: int = 0
    eviction_failures: dict[str, int] = {}


def add(counts: dict[str, int], key: str, by: int = 1) -> None:
    """Count up, or down; a count of 0 is left out."""
    counts[key] = counts.get(key, 0) + by
    if not counts[key]:
        del counts[key]
