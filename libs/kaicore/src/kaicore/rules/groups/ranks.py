"""Which place a pod has among the pods of its set, as its labels tell."""

from kaicore.rules.model.group import RankSource
from kaicore.rules.model.pod import Pod

#: Python reads no number of thousands of digits.
_MOST_DIGITS = 10


def rank_of(pod: Pod, source: RankSource) -> int | None:
    """Return the rank that a pod tells, from 0 on; None where it tells none, or one that cannot be."""
    number = _number(pod, source.label)
    if number is None or number < source.offset:
        return None
    if not source.job_label:
        return number - source.offset
    job = _number(pod, source.job_label)
    return None if job is None else job * source.job_size + number - source.offset


def _number(pod: Pod, name: str) -> int | None:
    text = pod.labels.get(name) or pod.annotations.get(name, "")
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else None
