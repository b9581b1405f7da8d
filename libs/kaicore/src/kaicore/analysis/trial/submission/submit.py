"""Prediction for manifests that are submitted now, tried on a copy of a state that an inquiry keeps.

One cycle runs on the copy, as the scheduler's next cycle would. For pods that do not start in it, the answer gives the
reasons of `kai why` and tries remedies in the same way. Past runs give the time at which they are likely to start.
"""

from collections.abc import Iterator, Sequence

import msgspec

from kaicore.analysis.ask.listing import pod_status, pod_zones, reason_answer
from kaicore.analysis.json_spelling import place_of, time_text
from kaicore.analysis.life.placements import part_answers
from kaicore.analysis.life.why_answers import GpuPartAnswer
from kaicore.analysis.trial.simulation import Located
from kaicore.analysis.trial.submission.answers import (
    STAYS_IN_THE_WAY,
    Prospect,
    SubmitAnswer,
    SubmittedEviction,
    SubmittedGroup,
    SubmittedPod,
    start_answer,
)
from kaicore.analysis.trial.submission.start_forecasts import StartForecasts
from kaicore.analysis.trial.submission.submitted_world import next_cycle
from kaicore.errors import InvalidObject
from kaicore.rules.deciding.forecast.runs import RunHistory
from kaicore.rules.deciding.forecast.start import ForecastLimits, NoForecast, StartForecast, forecast_starts
from kaicore.rules.deciding.why import StateRemedies, one_by_one, pending_reasons
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.explain.waiting_reasons import are_lasting, weight
from kaicore.rules.engine.policies.book import NO_POLICIES, PolicyBook
from kaicore.rules.events.payloads import EvictionDecided, PodPlaced
from kaicore.rules.events.reasons.base import CodedReason, plural
from kaicore.rules.groups.labels import NO_RANK
from kaicore.rules.groups.membership import POD
from kaicore.rules.model.group import min_pods
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.fork import CopiedState
from kaicore.rules.state.pods.pod_entry import PodEntry, Stage
from kaicore.rules.state.views import CycleView

_ACTOR = "submission"


def submit(
    state: ClusterState,
    objects: Sequence[Located],
    history: RunHistory,
    *,
    now: int,
    limits: ForecastLimits | None = None,
    policies: PolicyBook = NO_POLICIES,
) -> SubmitAnswer:
    """Say what would become of manifests.

    Args:
        state: a copy; changed.
        objects: in any order, with apiVersion and kind.
        history: of the same log, up to the state's position or before; not changed.
        now: microseconds since the epoch.
        limits: how far is looked ahead.
        policies: the code of policies; a warning names those of which it has none.
    """
    copied = CopiedState(state, now=now)
    place, recorded = place_of(state), state.config()
    submitted, proposal, config = next_cycle(copied, objects, policies, actor=_ACTOR)
    submitted_uids = set(submitted.uids)
    earlier = [one for one in proposal.result.placements if one.uid not in submitted_uids]
    groups = _Groups(
        state,
        config,
        placed={decision.uid: decision for decision in proposal.result.placements},
        evictions=proposal.result.evictions,
        cycle=proposal.cycle,
        policies=policies,
    )
    keys = list(dict.fromkeys(state.pods[uid].group for uid in submitted.uids))
    members = {key: [state.pods[uid] for uid in submitted.uids if state.pods[uid].group == key] for key in keys}
    waiting = [key for key in keys if groups.may_start_later(members[key])]
    forecasts = forecast_starts(
        state, config, history, waiting, now=copied.now, limits=limits or ForecastLimits(), policies=policies
    )
    answers = [groups.answer(key, members[key], forecasts.get(key), now=copied.now) for key in keys]
    return SubmitAnswer(
        **place,
        now=time_text(copied.now),
        problems=submitted.problems,
        warnings=[*submitted.warnings, *_policies_left_out(recorded, config)],
        others_placed=[_placed(state.pods[one.uid], one.node) for one in earlier],
        groups=sorted(answers, key=lambda group: (group.namespace, group.name, group.kind)),
    )


def _placed(entry: PodEntry, node: str) -> SubmittedPod:
    return SubmittedPod.copied(entry.pod, status=pod_status(entry), node=node, zones=pod_zones(entry))


def _policies_left_out(recorded: EngineConfig, asked: EngineConfig) -> Iterator[str]:
    left_out = [one.name for one in recorded.policies if one not in asked.policies]
    if left_out:
        yield f"without policies of the shard (no code of them here, or they fail): {', '.join(left_out)}"


class _Groups:
    """Answers about the groups of what was submitted, after the cycle."""

    def __init__(
        self,
        state: CycleView,
        config: EngineConfig,
        *,
        placed: dict[str, PodPlaced],
        evictions: Sequence[EvictionDecided],
        cycle: str,
        policies: PolicyBook,
    ) -> None:
        self._cycle = cycle
        self._state, self._config, self._placed, self._evictions = state, config, placed, evictions
        self._remedies = StateRemedies(state, config, policies)

    def may_start_later(self, members: Sequence[PodEntry]) -> bool:
        """True if nothing of a group starts now, and its obstacles may pass."""
        return (
            not any(entry.charged for entry in members)
            and any(self._ours(entry) for entry in members)
            and not are_lasting(self._reasons(members))
        )

    def answer(
        self, key: str, members: Sequence[PodEntry], forecast: StartForecast | NoForecast | None, *, now: int
    ) -> SubmittedGroup:
        """Say what would become of a group."""
        group = self._state.groups.get(key)
        first = members[0].pod
        verdict = self._verdict(members)
        reasons = self._reasons(members) if verdict is not Prospect.STARTS_NOW else []
        waiting = [entry for entry in members if entry.waiting]
        start = start_answer(forecast, now=now) if isinstance(forecast, StartForecast) else None
        no_start = forecast.why if isinstance(forecast, NoForecast) else ""
        if verdict is Prospect.WAITS and forecast is None:
            no_start = STAYS_IN_THE_WAY
        elif verdict is Prospect.OTHER_SCHEDULER:
            no_start = f"it is {first.scheduler_name} that decides"
        return SubmittedGroup(
            kind=POD if group is None else group.origin,
            namespace=first.namespace,
            name=first.name if group is None else group.name,
            queue=self._state.queue_registry.tree.name_for(*self._state.queue_of(members[0])),
            minimum=1 if group is None else max(min_pods(group.sets), 1),
            verdict=verdict,
            message=_message(verdict, members, len(self._victims(key))),
            pods=[self._pod(entry) for entry in sorted(members, key=lambda entry: entry.pod.name)],
            evictions=self._victims(key),
            reasons=[reason_answer(reason, pods=len(waiting)) for reason in reasons],
            schedulable_if=[
                reason_answer(reason)
                for reason in (self._remedies.of(waiting[0]) if verdict is Prospect.WAITS and waiting else ())
            ],
            start=start,
            no_start=no_start,
            notes=one_by_one(self._state, members),
        )

    def _ours(self, entry: PodEntry) -> bool:
        return entry.pod.scheduler_name == self._config.scheduler_name

    def _verdict(self, members: Sequence[PodEntry]) -> Prospect:
        if not any(self._ours(entry) for entry in members):
            return Prospect.OTHER_SCHEDULER
        if any(entry.charged for entry in members):
            return Prospect.STARTS_NOW
        nominated = any(entry.nomination is not None for entry in members)
        return Prospect.STARTS_AFTER_EVICTIONS if nominated else Prospect.WAITS

    def _reasons(self, members: Sequence[PodEntry]) -> list[CodedReason]:
        listed = (reason for entry in members if entry.waiting for reason in pending_reasons(entry, self._state))
        return sorted(dict.fromkeys(listed), key=weight)

    def _victims(self, key: str) -> list[SubmittedEviction]:
        return [SubmittedEviction.copied(one) for one in self._evictions if one.preemptor == key]

    def _pod(self, entry: PodEntry) -> SubmittedPod:
        placed = self._placed.get(entry.pod.uid)
        kept = entry.nomination.node if entry.nomination is not None else ""
        return SubmittedPod.copied(
            entry.pod,
            status="Nominated" if kept else pod_status(entry),
            node=entry.node or kept,
            zones=pod_zones(entry),
            rank=placed.rank if placed is not None and placed.rank != NO_RANK else None,
            domains=dict(placed.domains) if placed is not None else {},
            gpus=self._gpus(entry) or msgspec.UNSET,
        )

    def _gpus(self, entry: PodEntry) -> list[GpuPartAnswer]:
        parts, groups = part_answers(self._state, entry), self._state.shared_gpus.groups
        # A group that only this trial has opened is no name for anybody.
        return [GpuPartAnswer(part=one.part) if groups[one.group].opened.cycle == self._cycle else one for one in parts]


def _message(verdict: Prospect, members: Sequence[PodEntry], evictions: int) -> str:
    pods = plural(len(members), "pod")
    placed = sum(entry.stage is Stage.PLACED for entry in members)
    match verdict:
        case Prospect.STARTS_NOW if placed == len(members):
            return f"its {pods} would start now" if placed > 1 else "it would start now"
        case Prospect.STARTS_NOW:
            return f"{placed} of its {pods} would start now"
        case Prospect.STARTS_AFTER_EVICTIONS:
            gone = f"{evictions} pods are" if evictions != 1 else "1 pod is"
            return f"would start as soon as {gone} evicted for it"
        case Prospect.OTHER_SCHEDULER:
            return f"waits for another scheduler: {members[0].pod.scheduler_name}"
        case _:
            return f"its {pods} would wait" if len(members) > 1 else "it would wait"


#: Most objects of one question.
MOST_OBJECTS = 1000


class Submissions(StartForecasts):
    """One for a process, so that what was read once is kept."""

    async def submit(self, cluster: str, objects: Sequence[Located], *, at: str = "") -> SubmitAnswer:
        """Say what would become of manifests; see `kaicore.analysis.trial.submission.submit`.

        Args:
            objects: in any order, with apiVersion and kind.
            at: as of which moment (`kaicore.analysis.replay.moments`); empty for now. In the past the time is that of
                the last event.

        Raises:
            InvalidObject: there are no objects, or too many.
            UnknownMoment: there is no such moment.
            EventsRetired: its events are gone.
            TooManyQuestions: about this cluster wait already.
        """
        if not 0 < len(objects) <= MOST_OBJECTS:
            raise InvalidObject("manifests", "objects", len(objects), f"must be from 1 to {MOST_OBJECTS}")
        answer = await self.of_state(
            cluster, at, lambda copied, history, now: submit(copied, objects, history, now=now, policies=self.policies)
        )
        return await self.checked(answer)
