"""Ranks that pods name themselves."""

from kaicore.rules.model.group import RankSource
from kaicore.rules.model.pod import Pod

#: The rank of a pod that has none.
NO_RANK = -1
#: Ranks of more digits are taken for none.
_MOST_DIGITS = 9


def own_rank(pod: Pod, source: RankSource | None) -> int:
    """Return the rank that a pod names; `NO_RANK` where it names none that is a number from the first on."""
    if source is None:
        return NO_RANK
    said = pod.labels.get(source.label) or pod.annotations.get(source.label, "")
    if not said.isdecimal() or not said.isascii() or len(said) > _MOST_DIGITS:
        return NO_RANK
    return max(int(said) - source.offset, NO_RANK)
