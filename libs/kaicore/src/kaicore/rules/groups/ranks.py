"""Ranks that pods declare themselves."""

from kaicore.rules.model.group import RankSource
from kaicore.rules.model.placement import RANK_ANNOTATION
from kaicore.rules.model.pod import Pod

#: The rank of a pod that has none.
NO_RANK = -1
#: Ranks of more digits are taken for none.
_MOST_DIGITS = 9


def own_rank(pod: Pod, source: RankSource | None) -> int:
    """Return the rank that a pod names; `NO_RANK` where it names none that is a number from the first on."""
    if source is None:
        return NO_RANK
    number = _number(pod, source.label)
    job = _number(pod, source.job_label) if source.job_label else 0
    if job == NO_RANK or number < source.offset:
        return NO_RANK
    return job * source.job_size + number - source.offset


def placed_rank(pod: Pod) -> int:
    """Return the rank that the binding of a pod wrote on it; `NO_RANK` for none."""
    return _number(pod, RANK_ANNOTATION)


def rank_order(pod: Pod, source: RankSource | None) -> tuple[bool, int]:
    """Order pods by the ranks that they name; those that name none come last."""
    rank = own_rank(pod, source)
    return rank == NO_RANK, rank


def _number(pod: Pod, name: str) -> int:
    text = pod.labels.get(name) or pod.annotations.get(name, "")
    return int(text) if text.isdecimal() and text.isascii() and len(text) <= _MOST_DIGITS else NO_RANK
