"""The history of jobs, for `kai history`: what became of each group or pod of its own, by its attempts.

An attempt ends where a pod of it failed or was evicted, and the next one begins with the first pod that was made after
that.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal, get_args

import msgspec

from kaicore.analysis.ask.projections.rows import PodHistory
from kaicore.analysis.json_spelling import Answer, AsOf, time_text
from kaicore.errors import InvalidObject
from kaicore.rules.groups.membership import POD
from kaicore.rules.model.gpu_share import WHOLE

JobState = Literal["waiting", "running", "completed", "failed", "evicted", "deleted"]
#: The first one counts of a job with pods in several states.
_STATES: tuple[JobState, ...] = ("running", "waiting", "failed", "evicted", "deleted", "completed")
_BROKEN = ("failed", "evicted")
_HOUR_US = 3_600_000_000


class JobQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """A selection of jobs; what is empty lets all through.

    Attributes:
        name: of a group, a pod of its own or a pod of a group.
        since, until: moments; jobs are meant that were there in between.
    """

    name: str = ""
    namespace: str = ""
    queue: str = ""
    user: str = ""
    state: str = ""
    since: str = ""
    until: str = ""

    def check(self) -> None:
        """Raise InvalidObject unless it makes sense."""
        if self.state and self.state not in get_args(JobState):
            raise InvalidObject("history", "state", self.state[:100], f"is none of {', '.join(get_args(JobState))}")


class JobPod(Answer, frozen=True, kw_only=True):
    """A pod of a job; times are empty for what has not happened.

    Attributes:
        attempt: from 1.
        eligible: a cycle first tried to place it.
        why_ended: the reason of its failure or eviction.
    """

    attempt: int
    name: str
    state: JobState
    node: str
    gpus: float
    submitted: str
    eligible: str
    started: str
    ended: str
    elapsed_s: int
    gpu_hours: float
    evictions: int
    why_ended: str


class JobRow(Answer, frozen=True, kw_only=True):
    """A job: a group, or a pod of its own.

    Attributes:
        kind: with its API group; Pod for a pod of its own.
        eligible: a cycle first tried to place a pod of it.
        waited_s: from its submission until its first pod ran, or until now.
        elapsed_s: in which a pod of it ran.
        gpus: of its last attempt.
        gpu_hours: of all attempts, while pods ran.
        pods: by attempts; empty in lists.
    """

    kind: str
    namespace: str
    name: str
    queue: str
    user: str
    state: JobState
    submitted: str
    eligible: str
    started: str
    ended: str
    waited_s: int
    elapsed_s: int
    gpus: float
    gpu_hours: float
    nodes: list[str]
    attempts: int
    evictions: int
    why_ended: str
    pods: list[JobPod] = msgspec.field(default_factory=list)


class JobHistory(AsOf, frozen=True, kw_only=True):
    """Jobs by their submission, the last one first; `position` is the last position that this covers."""

    items: list[JobRow]


def jobs_of(rows: Iterable[PodHistory], wanted: JobQuestion, *, now: int) -> list[JobRow]:
    """Return the jobs of pods, the last one first.

    Args:
        rows: all pods of each job that is meant.
        now: until when what runs has run, microseconds since the epoch.
    """
    by_job: dict[str, list[PodHistory]] = defaultdict(list)
    for row in rows:
        by_job[row.group or f"{POD}/{row.namespace}/{row.name}"].append(row)
    jobs = [(min(pod.created_at for pod in pods), _job(key, pods, now=now)) for key, pods in by_job.items()]
    jobs.sort(key=lambda job: (-job[0], job[1].namespace, job[1].name))
    kept = [job for _, job in jobs if wanted.state in ("", job.state)]
    return kept if wanted.name else [msgspec.structs.replace(job, pods=[]) for job in kept]


def _job(key: str, rows: Sequence[PodHistory], *, now: int) -> JobRow:
    kind, namespace, name = key.split("/", 2)
    rows = sorted(rows, key=lambda row: (row.created_at, row.seen_at, row.name))
    numbers = _attempts(rows)
    pods = [_pod(row, number, now=now) for row, number in zip(rows, numbers, strict=True)]
    last = [row for row, number in zip(rows, numbers, strict=True) if number == numbers[-1]]
    states = {_state(row) for row in last}
    state = next(one for one in _STATES if one in states)
    started = min((row.started_at for row in rows if row.started_at), default=0)
    created, over = rows[0].created_at, state not in ("running", "waiting")
    ended = max(map(_ended, rows)) if over else 0
    return JobRow(
        kind=kind,
        namespace=namespace,
        name=name,
        queue=rows[-1].queue,
        user=rows[-1].user,
        state=state,
        submitted=time_text(created),
        eligible=_text(min((row.tried_at for row in rows if row.tried_at), default=0)),
        started=_text(started),
        ended=_text(ended),
        waited_s=max((started or ended or now) - created, 0) // 1_000_000,
        elapsed_s=_ran_us(rows, now=now) // 1_000_000,
        gpus=sum(row.gpus for row in last) / WHOLE,
        gpu_hours=round(sum(pod.gpu_hours for pod in pods), 6),
        nodes=sorted({row.node for row in rows if row.node}),
        attempts=numbers[-1],
        evictions=sum(row.evictions for row in rows),
        why_ended=next((pod.why_ended for pod in reversed(pods) if pod.why_ended), ""),
        pods=pods,
    )


def _attempts(rows: Sequence[PodHistory]) -> list[int]:
    numbers, broken = [1], [0]
    for before, row in pairwise(rows):
        if _state(before) in _BROKEN:
            broken.append(_ended(before))
        over = any(0 < at <= row.created_at + 1_000_000 for at in broken)
        numbers.append(numbers[-1] + over)
        if over:
            broken = [0]
    return numbers


def _pod(row: PodHistory, attempt: int, *, now: int) -> JobPod:
    state, ran = _state(row), _ran_us([row], now=now)
    return JobPod(
        attempt=attempt,
        name=row.name,
        state=state,
        node=row.node,
        gpus=row.gpus / WHOLE,
        submitted=time_text(row.created_at),
        eligible=_text(row.tried_at),
        started=_text(row.started_at),
        ended=_text(_ended(row)),
        elapsed_s=ran // 1_000_000,
        gpu_hours=round(row.gpus * ran / WHOLE / _HOUR_US, 6),
        evictions=row.evictions,
        why_ended=row.why_ended if state in _BROKEN else "",
    )


def _state(row: PodHistory) -> JobState:
    if row.outcome == "Succeeded":
        return "completed"
    if row.evictions and _ended(row):
        return "evicted"
    if row.finished_at:
        return "failed"
    if row.gone_at:
        return "deleted"
    return "running" if row.started_at else "waiting"


def _ended(row: PodHistory) -> int:
    return row.finished_at or row.gone_at


def _ran_us(rows: Sequence[PodHistory], *, now: int) -> int:
    total = reached = 0
    for begin, end in sorted((row.started_at, _ended(row) or now) for row in rows if row.started_at):
        total += max(end - max(begin, reached), 0)
        reached = max(reached, end)
    return total


def _text(at: int) -> str:
    return time_text(at) if at else ""
