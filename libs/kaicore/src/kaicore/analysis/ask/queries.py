"""The questions about a log, answered from states that are kept, and the differences of two moments of a cluster."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from kaicore.analysis.ask import answers
from kaicore.analysis.ask.audits.audit_answers import EvictionAudit, GroupAudit, NodeAudit, PlacementAudit, Span
from kaicore.analysis.ask.audits.audit_node import audit_group, audit_node, span_of
from kaicore.analysis.ask.audits.audit_placements import audit_evictions, audit_placements
from kaicore.analysis.ask.counterfactuals.drains import DrainPlan, planned_drain
from kaicore.analysis.ask.counterfactuals.reservations import (
    ReservationPlan,
    ReservationQuestion,
    ReservationsAnswer,
    planned_reservation,
    standing_reservations,
)
from kaicore.analysis.ask.explanations import why_node, why_owner, why_pod, why_queue
from kaicore.analysis.ask.hub_rows import HubInquiry
from kaicore.analysis.ask.listing import group_called, known_names, list_cycles, list_rows, summary
from kaicore.analysis.ask.standings import Change, PriorityAnswer, gpu_holders, priority_of
from kaicore.analysis.ask.topology.answers import DomainAnswer, TopologiesAnswer, TopologyAssignments, TopologyQuestion
from kaicore.analysis.ask.topology.domains import topologies_of, topology_assignments
from kaicore.analysis.json_spelling import recorded_text, time_text
from kaicore.analysis.life.attempts import TriedGroup, tried_groups
from kaicore.analysis.life.pod_history import PodEvidence, pod_evidence, recorded_config
from kaicore.analysis.replay.log_states import events_of, last_events
from kaicore.analysis.replay.moments import end_of_append, parse_moment, position_of
from kaicore.analysis.replay.past_states import KeptState, PastStates, QuestionsFirst
from kaicore.errors import InvalidObject, KaiError, UnknownSubject
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.rules.engine.config import ENGINE_VERSION
from kaicore.rules.engine.policies.book import NO_POLICIES, PolicyBook, PolicyMismatch
from kaicore.rules.events.payloads import CycleCompleted, WatcherStarted
from kaicore.rules.hub.cluster_side import DISPATCH_MARK, Term
from kaicore.rules.hub.hub_state import HUB, without_hub
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.fork import fork
from kaicore.rules.state.views import ClusterView, FleetView, PodsView
from kaicore.spelling import did_you_mean

#: Which filters make sense for a kind, beside none; the kind is left out where another one is given.
_FILTERS: dict[str, frozenset[str]] = {
    "nodes": frozenset({"node"}),
    "topology": frozenset(),
    "queues": frozenset({"queue"}),
    "groups": frozenset({"namespace", "queue"}),
    "pods": frozenset({"namespace", "node", "queue"}),
    "zones": frozenset({"node"}),
}

#: Fields of a row that another kind tells.
_OF_OTHER_KINDS = {"nodes": {"zones"}, "groups": {"expected_start", "expected_from"}}

_FlatRow = dict[str, str]


class ComparedState:
    """The rows of one state that a comparison looks at."""

    def __init__(self, state: ClusterView, wanted: answers.DiffQuestion) -> None:
        """Take the rows that are wanted.

        Raises InvalidObject: there is no such kind, or it has not what is filtered by.

        Args:
            state: not looked at again.
        """
        self.cluster = state.cluster
        self.side = answers.DiffSide(position=state.position, recorded_at=recorded_text(state.recorded_at))
        #: By kind and key: a name, and all fields as text.
        self.rows = {kind: dict(_rows(state, kind)) for kind in _kinds(wanted)}
        #: Keys by kind of those that the filters let through.
        self.let_through = {kind: _let_through(state, kind, wanted, rows) for kind, rows in self.rows.items()}


def compare(before: ComparedState, after: ComparedState) -> answers.DiffAnswer:
    """Return what is different."""
    changes = [change for kind in before.rows for change in _compare(kind, before, after)]
    counts: dict[str, dict[str, int]] = {}
    for change in changes:
        of_kind = counts.setdefault(change.kind, {"added": 0, "removed": 0, "changed": 0})
        of_kind[change.change] += 1
    return answers.DiffAnswer(
        cluster=before.cluster, before=before.side, after=after.side, counts=counts, changes=changes
    )


def _kinds(wanted: answers.DiffQuestion) -> Sequence[str]:
    given = {name for name in ("namespace", "node", "queue") if getattr(wanted, name)}
    if not wanted.kind:
        return [kind for kind in answers.KINDS if given <= _FILTERS[kind]]
    if wanted.kind not in answers.KINDS:
        close = did_you_mean(wanted.kind, answers.KINDS)
        raise InvalidObject("diff", "kind", wanted.kind, f"is none of {', '.join(answers.KINDS)}{close}")
    if wrong := sorted(given - _FILTERS[wanted.kind]):
        raise InvalidObject("diff", wrong[0], getattr(wanted, wrong[0]), f"{wanted.kind} cannot be filtered by it")
    return [wanted.kind]


def _compare(kind: str, before: ComparedState, after: ComparedState) -> Iterator[answers.RowChange]:
    old, new = before.rows[kind], after.rows[kind]
    # What a filter lets through at one of both moments: a pod that left a node did change.
    keys = before.let_through[kind] | after.let_through[kind]
    for key in sorted(keys):
        (name, was), (_, is_now) = old.get(key, ("", {})), new.get(key, ("", {}))
        if was == is_now:
            continue
        fields = [
            answers.FieldChange(field=field, before=was.get(field, ""), after=is_now.get(field, ""))
            for field in dict.fromkeys((*was, *is_now))
            if was.get(field, "") != is_now.get(field, "")
        ]
        change = "added" if key not in old else "removed" if key not in new else "changed"
        yield answers.RowChange(kind=kind, name=name or new[key][0], change=change, fields=fields)


def _rows(state: ClusterView, kind: str) -> Iterator[tuple[str, tuple[str, _FlatRow]]]:
    if kind == "topology":
        yield from _domains(state)
        return
    for row in list_rows(state, kind, answers.RowSelection()):
        fields = {
            name: value for name, value in msgspec.to_builtins(row).items() if name not in _OF_OTHER_KINDS.get(kind, ())
        }
        yield _key(row), (_name(row), dict(_flat(fields)))


def _let_through(
    state: ClusterView, kind: str, wanted: answers.DiffQuestion, rows: Mapping[str, tuple[str, _FlatRow]]
) -> set[str]:
    if kind == "topology" or not (wanted.namespace or wanted.node or wanted.queue):
        return set(rows)
    name = wanted.queue if kind == "queues" else ""
    queue = "" if kind == "queues" else wanted.queue
    selection = answers.RowSelection(name=name, namespace=wanted.namespace, node=wanted.node, queue=queue)
    return {_key(row) for row in list_rows(state, kind, selection)}


def _key(row: answers.Row) -> str:
    """Return what a row is known by: of two pods of one name the later one is another pod."""
    uid = getattr(row, "uid", "")
    return f"{_name(row)} {uid}" if uid else _name(row)


def _name(row: answers.Row) -> str:
    key = getattr(row, "key", "")
    namespace = getattr(row, "namespace", "")
    return key or (f"{namespace}/{row.name}" if namespace else row.name)  # type: ignore[union-attr]


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Write fields within fields as one path; items of lists go by their resource or name."""
    within = f"{path}." if path else ""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _flat(item, f"{within}{name}")
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for item in value:
            key = next((field for field in ("resource", "group", "pod") if field in item), "")
            name = item[key] if key else "/".join(item[part] for part in ("namespace", "name") if part in item)
            rest = {field: part for field, part in item.items() if field not in (key, "namespace", "name")}
            yield from _flat(rest, f"{within}{name}")
    elif isinstance(value, list):
        yield path, ",".join(map(str, value))
    elif isinstance(value, bool):
        yield path, "yes" if value else "no"
    else:
        yield path, str(value)


def _domains(state: FleetView) -> Iterator[tuple[str, tuple[str, _FlatRow]]]:
    """Return the domains of all topologies: how many nodes each has, and not what they use, which nodes tell."""
    for topology in topologies_of(state, TopologyQuestion()).topologies:
        name = topology.name or topology.kind
        yield name, (name, {"nodes": str(topology.nodes), "problems": "; ".join(topology.problems)})
        stack = [(name, domain) for domain in topology.domains]
        while stack:
            above, domain = stack.pop()
            path = f"{above}/{domain.name}"
            yield path, (path, _domain(domain))
            stack += [(path, below) for below in domain.domains]


def _domain(domain: DomainAnswer) -> _FlatRow:
    return {
        "level": domain.level,
        "nodes": str(domain.nodes),
        "available": str(domain.available),
        "idle": str(domain.idle),
        **{f"allocatable.{item.resource}": item.allocatable for item in domain.resources},
    }


#: Seconds between two looks for clusters that are new in the log.
_LOOK_S = 10.0


class Inquiry:
    """Answers from one log; one for a process, so that what was folded once is kept.

    Questions take `at`, a moment as `kaicore.analysis.replay.moments.parse_moment` reads it; empty is the log's end.
    They raise UnknownMoment where there is no such moment, and EventsRetired where its events are gone.
    """

    def __init__(
        self,
        log: EventLog,
        *,
        once: bool = False,
        progress: Callable[[int, int], None] = lambda _, __: None,
        policies: PolicyBook = NO_POLICIES,
    ) -> None:
        """Args:
        once: no second question will come; see `PastStates`.
        progress: called with how far a state is folded for a question, and how far it will be, in positions.
        policies: the code of the shards' policies; answers name those of which it has none.
        """
        self.log = log
        self.policies = policies
        self._once = once
        self._progress = progress
        self._questions = QuestionsFirst()
        self._states: dict[str, KeptState] = {}
        self._past: dict[str, PastStates] = {}
        self.hub = HubInquiry(log)

    @property
    def states(self) -> tuple[KeptState, ...]:
        """The states that are kept."""
        return tuple(self._states.values())

    def state(self, cluster: str) -> KeptState:
        """Return the kept state of a cluster."""
        if cluster not in self._states:
            past = self._past_of(cluster)
            kept = KeptState(self.log, cluster, questions=self._questions, past=past, progress=self._progress)
            self._states[cluster] = kept
        return self._states[cluster]

    async def state_at(self, cluster: str, at: str = "") -> ClusterState:
        """Return the state of a cluster at a moment; it changes again, so answer from it before the next `await`."""
        if not at:
            return await self.state(cluster).current()
        position = await position_of(self.log, cluster, parse_moment(at))
        return await self._past_of(cluster).at(position)

    def _past_of(self, cluster: str) -> PastStates:
        if cluster not in self._past:
            self._past[cluster] = PastStates(self.log, cluster, once=self._once, progress=self._progress)
        return self._past[cluster]

    async def follow(self, *, caught_up: Callable[[], None] = lambda: None) -> None:
        """Keep the states of all clusters up to date, until cancelled.

        Args:
            caught_up: called when the first clusters have their states, but for those that cannot.
        """
        following: dict[str, asyncio.Task[None]] = {}
        catching_up: list[asyncio.Task[None]] = []
        try:
            while True:
                with suppress(KaiError):
                    for cluster in without_hub(await self.log.clusters()):
                        if cluster not in following:
                            following[cluster] = asyncio.create_task(self.state(cluster).follow())
                    if not catching_up:
                        catching_up.append(asyncio.create_task(self._catch_up(caught_up)))
                await asyncio.sleep(_LOOK_S)
        finally:
            for task in (*following.values(), *catching_up):
                task.cancel()

    async def _catch_up(self, caught_up: Callable[[], None]) -> None:
        for kept in self.states:
            await kept.tried.wait()
        caught_up()

    async def clusters(self) -> list[answers.ClusterRow]:
        """Return the clusters that have a log."""
        rows = []
        names = await self.log.clusters()
        at_its_hub = await self.hub.clusters(now=time.time_ns() // 1000) if HUB in names else ()
        of_hub = {row.name: row for row in at_its_hub}
        for name in without_hub(names):
            head = await self.log.head(name)
            recorded_at, digest = time_text(head.recorded_at), head.hash.hex()
            row = answers.ClusterRow(name=name, position=head.position, recorded_at=recorded_at, hash=digest)
            if (at_hub := of_hub.get(name)) is not None:
                counts = {"waiting": at_hub.waiting, "running": at_hub.running}
                row = msgspec.structs.replace(row, state=at_hub.state, **counts)
            rows.append(row)
        return rows

    async def dispatches(self, *, pending: bool = False) -> list[answers.DispatchRow]:
        """Return the hub's dispatches, the oldest first; `pending` for those that have not started."""
        return await self.hub.dispatches(pending=pending)

    async def why_dispatch(self, name: str) -> answers.DispatchWhy:
        """Say in which cluster a dispatch is, and why; see `HubInquiry.why`.

        Raises UnknownSubject: there is none of the name.
        """
        return await self.hub.why(name)

    async def position(self, cluster: str, *, at: str = "") -> int:
        """Return the position of a moment of a cluster's log; of its end where `at` is empty.

        Raises UnknownMoment: its log has no such moment.
        """
        return await position_of(self.log, cluster, parse_moment(at)) if at else (await self.log.head(cluster)).position

    async def wait_beyond(self, cluster: str, position: int, *, timeout_s: float) -> int:
        """Wait until a cluster's log goes on beyond a position, at most `timeout_s`; return its end's position."""
        return await self.log.wait_beyond(cluster, position, timeout_s=timeout_s)

    async def cluster(self, cluster: str, *, at: str = "") -> answers.ClusterSummary:
        """Return a cluster in figures."""
        return summary(await self.state_at(cluster, at))

    async def listing(
        self, cluster: str, kind: str, wanted: answers.RowSelection, *, at: str = "", now: int = 0
    ) -> answers.Listing:
        """Return rows of a kind; `now` where a log goes on. Raises InvalidObject: there is no such kind."""
        if kind not in answers.ROWS:
            raise InvalidObject("list", "kind", kind, f"is none of {', '.join(answers.ROWS)}")
        state = await self.state_at(cluster, at)
        position, recorded_at, total = state.position, state.recorded_at, state.counters.cycles
        known = min((knew for _, knew in state.last_cycles.values()), default=0) if kind in ("pods", "groups") else 0
        if kind == "cycles":
            rows = await list_cycles(self.log, cluster, wanted, head=position)
            total = len(rows) if wanted.name else total
        else:
            rows = list_rows(state, kind, wanted, now=now)
            total = len(rows)
        end = wanted.skip + wanted.limit if wanted.limit else len(rows)
        shown = rows[wanted.skip : end]
        return answers.Listing(
            cluster=cluster,
            kind=kind,
            position=position,
            recorded_at=recorded_text(recorded_at),
            reasons_position=known,
            unlisted_since=await self._unlisted_since(state) if kind in ("nodes", "zones") else "",
            total=total,
            next=f"{position}-{end}" if end < len(rows) else "",
            items=msgspec.Raw(msgspec.json.encode(shown)),
        )

    async def _unlisted_since(self, state: ClusterState) -> str:
        """Return when the last watcher started, where the log has no node."""
        if state.columns.present.any():
            return ""
        where = Filter(types=(WatcherStarted.__name__,))
        started, _ = await last_events(self.log, state.cluster, where, upto=state.position, enough=1)
        return time_text(started[-1].recorded_at) if started else ""

    async def who(
        self,
        cluster: str,
        queue: str,
        *,
        at: str = "",
        settings: Sequence[str] = (),
        change: Change | None = None,
        namespaces: frozenset[str] | None = None,
    ) -> answers.GpuHolders:
        """Say who has the GPUs that a queue is owed; see `kaicore.analysis.ask.standings.gpu_holders`."""
        state = await self.state_at(cluster, at)
        return gpu_holders(state, queue, namespaces=namespaces, settings=settings, change=change)

    async def diff(self, cluster: str, before: str, after: str, wanted: answers.DiffQuestion) -> answers.DiffAnswer:
        """Return what is different at one moment from what it was at another one.

        Raises InvalidObject: the question makes no sense.
        """
        old = ComparedState(await self.state_at(cluster, before), wanted)
        return compare(old, ComparedState(await self.state_at(cluster, after), wanted))

    async def priority(self, cluster: str, *, queue: str = "", at: str = "") -> PriorityAnswer:
        """Return the order of a queue's waiting groups; see `kaicore.analysis.ask.standings`.

        Raises UnknownSubject: there is no such queue.
        """
        state = await self.state_at(cluster, at)
        return priority_of(state, queue, self.policies, now=state.recorded_at)

    async def reservations(self, cluster: str, *, at: str = "", now: int = 0) -> ReservationsAnswer:
        """Return the reservations of nodes that stand, with what is in their way; `now` where a log goes on."""
        return standing_reservations(await self.state_at(cluster, at), now=now)

    async def planned_reservation(self, cluster: str, asked: ReservationQuestion) -> ReservationPlan:
        """Return what a reservation would be, before it is made. Raises InvalidObject: the question makes no sense."""
        return planned_reservation(await self.state_at(cluster), asked)

    async def planned_drain(self, cluster: str, asked: ReservationQuestion) -> DrainPlan:
        """Return what a drain would do, before it is made. Raises InvalidObject: the question makes no sense."""
        return planned_drain(await self.state_at(cluster), asked, self.policies)

    async def topologies(self, cluster: str, wanted: TopologyQuestion, *, at: str = "") -> TopologiesAnswer:
        """Return what the domains of a cluster's topologies have, use, and still have room for.

        Raises:
            InvalidObject: the question makes no sense.
            UnknownSubject: there is no topology of the name.
        """
        return topologies_of(await self.state_at(cluster, at), wanted)

    async def topology_assignments(
        self, cluster: str, kind: str, namespace: str, name: str, *, version: str, at: str = ""
    ) -> TopologyAssignments:
        """Return where the pods of a group are in its topology, in the form of a version of Kueue's API.

        Raises:
            InvalidObject: there is no such version.
            UnknownSubject: there is no such group, or it asks for no known topology.
        """
        return topology_assignments(await self.state_at(cluster, at), kind, namespace, name, version=version)

    async def audit_placements(self, cluster: str, span: Span, *, node: str = "") -> PlacementAudit:
        """Compare predicted placements with observed ones; see `kaicore.analysis.ask.audits.audit_placements`.

        Raises UnknownSubject: there never was a node of that name.
        """
        there = await span_of(self.log, cluster, span)
        own = PastStates(self.log, cluster, once=True, progress=self._progress)
        return await audit_placements(self.log, cluster, there, state_at=own.at, node=node)

    async def audit_node(self, cluster: str, node: str, span: Span, *, gpu: str = "") -> NodeAudit:
        """Return everything that held a node, and by which decision; see `kaicore.analysis.ask.audits.audit_node`.

        Raises UnknownSubject: there never was a node of that name.
        """
        there = await span_of(self.log, cluster, span)
        return await audit_node(
            self.log, cluster, node, there, state_at=lambda position: self.state_at(cluster, str(position)), gpu=gpu
        )

    async def audit_group(self, cluster: str, namespace: str, name: str, span: Span) -> GroupAudit:
        """Return what was decided about a group, and by whom; see `kaicore.analysis.ask.audits.audit_node`.

        Raises UnknownSubject: no pod was in such a group.
        """
        there = await span_of(self.log, cluster, span)
        own = PastStates(self.log, cluster, progress=self._progress)
        return await audit_group(self.log, cluster, namespace, name, there, state_at=own.at)

    async def audit_evictions(self, cluster: str, span: Span, *, namespace: str = "") -> EvictionAudit:
        """Return every eviction that was decided in a part of the log."""
        return await audit_evictions(self.log, cluster, await span_of(self.log, cluster, span), namespace=namespace)

    async def tried_groups(self, cluster: str, cycle: CycleCompleted) -> list[TriedGroup]:
        """Return the groups that a recorded cycle took up, in its order.

        Raises UnknownSubject: another version of the engine decided it, or its configuration is not in the log, or the
        code of its policies not in this process.
        """
        if cycle.engine_version != ENGINE_VERSION:
            raise UnknownSubject(
                f"cycle {cycle.cycle} was decided by engine {cycle.engine_version}; this is {ENGINE_VERSION}"
            )
        config = await recorded_config(self.log, cluster, cycle.config_digest)
        if config is None:
            raise UnknownSubject(f"the configuration of cycle {cycle.cycle} is not in the log")
        try:
            state = await self._past_of(cluster).at(cycle.input_position)
            return tried_groups(state, config, cycle, self.policies)
        except PolicyMismatch as error:
            raise UnknownSubject(f"cycle {cycle.cycle}: {error}") from error

    async def why(
        self, cluster: str, kind: str, namespace: str, name: str, *, at: str = "", now: int = 0, trials: bool = True
    ) -> answers.Why:
        """Explain something. Raises UnknownSubject: the log has never heard of it.

        Args:
            kind: without its API group, such as Pod, Job, Queue or Node.
            namespace: empty for what has none.
            at: as of which moment; what was recorded after it is not looked at. Within the decisions of a cycle it
                stands for their end, for they were appended at once: the answer's position is that.
            now: where a log goes on, the time.
            trials: whether changes are tried that would make a pod start.
        """
        # First its end, then the state: one that goes on changing is not awaited on.
        upto = None
        if at:
            upto = await end_of_append(self.log, cluster, await position_of(self.log, cluster, parse_moment(at)))
        evidence = PodEvidence((), "")
        if kind == "Pod":
            where = Filter(subject=f"{namespace}/{name}")
            story = [event async for event in events_of(self.log, cluster, upto=upto, where=where)]
            end = (await self.log.head(cluster)).position if upto is None else upto
            near = self._past_of(cluster).near
            evidence = await pod_evidence(self.log, cluster, story, upto=end, state_near=near, policies=self.policies)
        state = await self.state_at(cluster, at if upto is None else str(upto))
        match kind:
            case "Pod":
                if not evidence.uid:
                    close = group_called(state, namespace, name)
                    close = close or did_you_mean(f"{namespace}/{name}", known_names(state, kind, namespace))
                    moment = "" if upto is None else f" up to position {upto}"
                    raise UnknownSubject(f"the log has never heard of a pod {namespace}/{name}{moment}{close}")
                waiting = (one := state.pods.get(evidence.uid)) is not None and one.waiting
                ask = partial(why_pod, namespace=namespace, name=name, evidence=evidence)
                answer = await self._tried(state, ask, trials=trials, waiting=waiting)
            case "Queue" | "ClusterQueue" | "Cohort" | "LocalQueue":
                answer = why_queue(state, _queue_name(kind, namespace, name), self.policies)
            case "Node":
                answer = why_node(state, name, now=now)
            case _:
                waiting = any(state.pods[uid].pod.namespace == namespace for uid in state.waiting)
                ask = partial(why_owner, kind=kind, namespace=namespace, name=name)
                answer = await self._tried(state, ask, trials=trials, waiting=waiting)
        if answer is None:
            of_namespace = f"{namespace}/" if namespace else ""
            close = did_you_mean(name, known_names(state, kind, namespace))
            raise UnknownSubject(f"the log knows of no {kind} {of_namespace}{name}{close}")
        dispatch = await self._dispatch_of(state, answer)
        return msgspec.structs.replace(answer, recorded_at=recorded_text(state.recorded_at), dispatch=dispatch)

    async def _tried(
        self, state: ClusterState, ask: Callable[..., answers.Why | None], *, trials: bool, waiting: bool
    ) -> answers.Why | None:
        """Ask why something waits; changes are tried on a copy, in a thread, so that others are answered meanwhile."""
        ask = partial(ask, policies=self.policies, trials=trials)
        if self._once or not (trials and waiting):
            return ask(state)
        return await asyncio.to_thread(ask, fork(state))

    async def _dispatch_of(self, state: PodsView, answer: answers.Why) -> answers.DispatchWhy | None:
        """Return why the hub gave something to this cluster; None where it did not."""
        rows = {answer.name, *(row.name for row in answer.pods)} if answer.kind not in ("Node", "Queue") else set()
        marks = (
            entry.pod.annotations.get(DISPATCH_MARK, "")
            for entry in state.pods.values()
            if entry.pod.namespace == answer.namespace and entry.pod.name in rows
        )
        term = next((term for mark in marks if (term := Term.read(mark)) is not None), None)
        with suppress(UnknownSubject):
            return None if term is None else await self.hub.why(term.dispatch)
        return None


def _queue_name(kind: str, namespace: str, name: str) -> str:
    """Return a queue's name as the model has it (`kaicore.rules.model.queue`)."""
    if kind == "LocalQueue":
        return f"{namespace}/{name}"
    return name if kind == "Queue" else f"{kind}/{name}"
