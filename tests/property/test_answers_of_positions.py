"""Answers agree with the log: each is worked out once more from the raw events up to the position that it names.

Nothing here asks the code that answers. Events are counted and compared as they were recorded, and of states only the
fold itself is used.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kaicore.analysis.ask.answers import CycleRow, RowSelection, ZoneRow
from kaicore.analysis.ask.audits.audit_answers import Span
from kaicore.analysis.ask.queries import Inquiry
from kaicore.ledger.log.files.log import FileLog
from kaicore.ledger.log.port import EventLog
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event
from kaicore.rules.model.placement import Placement
from kaicore.rules.model.quantity import MEMORY, parse_amount
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.pods.agreement import Agreement, compare

from tests.given.examples import examples
from tests.given.recorded import read_log, recorded_logs
from tests.given.shared_data import require_shared, shared_path
from tests.unit.ask.test_audits import inquiry_into

#: Recorded by the demonstration, and on real kubelets.
LOGS = ("demo", "demo-blind", "run-2")
_RUN_2 = "data/live-kubelet/run-2/log.gz"
_CHOICES = st.integers(0, 10**6), st.integers(0, 10**6), st.randoms(use_true_random=False)


class Raw:
    """A log as it was recorded."""

    def __init__(self, name: str) -> None:
        if name == "run-2":
            self.events, self.inquiry = asyncio.run(_from_file())
        else:
            (path,) = (path for path in recorded_logs() if path.stem == f"{name}.jsonl")
            self.events = read_log(path)
            self.inquiry, _ = inquiry_into(self.events)
        self.cluster = self.events[0].cluster
        self.payloads = [decode_payload(event) for event in self.events]

    def upto(self, position: int) -> Iterator[tuple[Event, Any]]:
        return zip(self.events[:position], self.payloads[:position], strict=True)

    @cache  # noqa: B019 - one for each log
    def pods(self) -> list[str]:
        """The names of all pods, `<namespace>/<name>`."""
        return sorted({event.subject for event in self.events if event.stream.startswith("pod/")})

    @cache  # noqa: B019 - one for each log
    def hedged(self) -> list[int]:
        """The positions at which some pod is counted on zones where it was not predicted."""
        state, positions = ClusterState(self.cluster), []
        for event in self.events:
            state.fold(event)
            # One in forty is enough to choose from: to look at all pods at every event takes seconds.
            if event.position % 40 == 0 and any(one.alternatives for one in state.pods.values() if one.charged):
                positions.append(event.position)
        return positions


async def _from_file() -> tuple[list[Event], Inquiry]:
    log = FileLog(shared_path(_RUN_2))
    (cluster,) = await log.clusters()
    return await _every(log, cluster), Inquiry(log)


async def _every(log: EventLog, cluster: str) -> list[Event]:
    events: list[Event] = []
    while page := await log.read(cluster, after=len(events)):
        events += page
    return events


@cache
def raw(name: str) -> Raw:
    return Raw(name)


@pytest.fixture(params=LOGS)
def log(request: pytest.FixtureRequest) -> Raw:
    if request.param == "run-2":
        require_shared(_RUN_2)
    return raw(request.param)


def test_every_answer_of_a_cluster_names_the_position_or_the_span_that_it_is_of() -> None:
    of_no_position = {"clusters", "dispatches", "why_dispatch", "position", "wait_beyond", "tried_groups", "state_at"}
    of_no_position |= {"follow"}
    for name, method in vars(Inquiry).items():
        if name.startswith("_") or not asyncio.iscoroutinefunction(method) or name in of_no_position:
            continue
        fields = get_type_hints(get_type_hints(method)["return"])
        assert "position" in fields or "span" in fields or {"before", "after"} <= fields.keys(), name


@settings(max_examples=examples(20), deadline=None)
@given(*_CHOICES[:2])
@pytest.mark.parametrize("name", LOGS)
def test_cycles_that_are_listed_are_the_last_recorded_ones_and_their_number_is_the_logs(
    name: str, at: int, limit: int
) -> None:
    log = _log(name)
    at, limit = 1 + at % len(log.events), 1 + limit % 50
    listing = asyncio.run(log.inquiry.listing(log.cluster, "cycles", RowSelection(limit=limit), at=str(at)))
    recorded = [
        (event.position, payload.cycle, payload.input_position)
        for event, payload in log.upto(at)
        if isinstance(payload, payloads.CycleCompleted)
    ]
    assert (listing.position, listing.total) == (at, len(recorded))
    shown = [row for row in listing.rows if isinstance(row, CycleRow)]
    assert [(row.position, row.cycle, row.input_position) for row in shown] == recorded[::-1][:limit]


@settings(max_examples=examples(10), deadline=None)
@given(*_CHOICES[:2])
@pytest.mark.parametrize("name", LOGS)
def test_an_audit_counts_predictions_of_its_span_and_of_them_the_last_observations(
    name: str, first: int, last: int
) -> None:
    log = _log(name)
    first, last = sorted((1 + first % len(log.events), 1 + last % len(log.events)))
    audit = asyncio.run(log.inquiry.audit_placements(log.cluster, Span(since=str(first), until=str(last))))
    assert (audit.span.first, audit.span.last) == (first, last)
    predicted: dict[str, Placement] = {}
    compared: dict[str, Agreement] = {}
    decisions = rejected = 0
    for event, payload in log.upto(last):
        if event.position < first:
            continue
        if isinstance(payload, payloads.PodPlaced) and payload.placement is not None and payload.placement.containers:
            predicted[payload.uid] = payload.placement
            decisions += 1
        elif isinstance(payload, payloads.PlacementObserved) and payload.uid in predicted:
            compared[payload.uid] = compare(predicted[payload.uid], payload.placement)
        rejected += isinstance(payload, payloads.PodRejected)
    # In these logs no pod is observed between two decisions about it, and every observation is believed.
    kinds, counts = Counter(compared.values()), audit.counts
    assert (counts.predicted, counts.observed, counts.rejected) == (decisions, len(compared), rejected)
    assert [counts.exact, counts.same_zones, counts.different] == [kinds[kind] for kind in Agreement]
    for parts in (audit.nodes, audit.hours, audit.policies):
        assert sum(part.counts.predicted for part in parts) == decisions
        assert sum(part.counts.exact for part in parts) == counts.exact
        assert all(part.counts.observed <= part.counts.predicted for part in parts)


@settings(max_examples=examples(10), deadline=None)
@given(_CHOICES[0])
@pytest.mark.parametrize("name", LOGS)
def test_reasons_in_a_list_are_of_the_position_that_the_last_cycle_knew(name: str, at: int) -> None:
    log = _log(name)
    at = 1 + at % len(log.events)
    listing = asyncio.run(log.inquiry.listing(log.cluster, "pods", RowSelection(pending=True), at=str(at)))
    cycles = [payload for _, payload in log.upto(at) if isinstance(payload, payloads.CycleCompleted)]
    assert (listing.position, listing.reasons_position) == (at, cycles[-1].input_position if cycles else 0)


@settings(max_examples=examples(12), deadline=None)
@given(*_CHOICES)
@pytest.mark.parametrize("name", LOGS)
def test_why_of_a_pod_is_of_one_position_and_credits_no_cycle_with_what_it_did_not_find(
    name: str, at: int, which: int, random: Any
) -> None:
    log = _log(name)
    pod = log.pods()[which % len(log.pods())]
    own = [event for event in log.events if event.subject == pod and event.stream.startswith("pod/")]
    # Anywhere in its life, and right before its decisions as often.
    anywhere = own[0].position + at % (len(log.events) - own[0].position + 1)
    decisions = [event.position - 1 for event in own if event.type == payloads.PodPlaced.__name__]
    at = max(random.choice([anywhere, *decisions]), own[0].position)
    namespace, _, pod_name = pod.partition("/")
    why = asyncio.run(log.inquiry.why(log.cluster, "Pod", namespace, pod_name, at=str(at)))

    # It is of the position that was asked for, or of the end of an append that this is within.
    between = log.events[at - 1 : why.position]
    assert why.position >= at
    assert len({(event.correlation, event.actor) for event in between}) == 1
    last = [(event, payload) for event, payload in log.upto(why.position) if event.subject == pod]
    (uid,) = {event.stream for event, _ in last[-1:]}
    decided = [
        (event, payload)
        for event, payload in last
        if event.stream == uid and isinstance(payload, payloads.PodPlaced | payloads.BindFailed)
    ]
    placed = bool(decided) and isinstance(decided[-1][1], payloads.PodPlaced)
    if why.attempts is None:
        assert (why.placement is not None) == any(isinstance(payload, payloads.PodPlaced) for _, payload in decided)
        if placed and why.placement is not None:
            event, payload = decided[-1]
            assert (why.placement.position, why.placement.node, why.placement.cycle) == (
                event.position,
                payload.node,
                payload.cycle,
            )
            assert "too far" not in why.placement.not_ranked or name != "run-2", (
                "a file has no nearer state to wait for"
            )
        return
    assert not placed
    cycles = [payload for _, payload in log.upto(why.position) if isinstance(payload, payloads.CycleCompleted)]
    assert why.attempts.cycles <= len(cycles)
    if why.attempts.last_cycle:
        assert (why.attempts.last_cycle, why.attempts.last_input_position) == (
            cycles[-1].cycle,
            cycles[-1].input_position,
        )
        found_it = {
            payload.cycle
            for event, payload in zip(log.events, log.payloads, strict=True)
            if event.stream == uid and isinstance(payload, payloads.PodPlaced)
        }
        assert why.attempts.last_cycle not in found_it
    if why.reasons_position:
        assert why.reasons_position == cycles[-1].input_position
        _check_short(log, why.reasons_position, cycles[-1].cycle, why.reasons)
    state = _folded(log, why.position)
    for short in why.nodes:
        for zone in short.zones:
            for resource, text in zone.free.items():
                assert _amount(resource, text) == max(_free(state, short.node, zone.zone, resource), 0)


def _check_short(log: Raw, position: int, cycle: str, reasons: list[Any]) -> None:
    """Free amounts in a reason were free on the state that the answer names, after some of the cycle's decisions."""
    state = _folded(log, position)
    placed = [one for one in log.payloads[position:] if isinstance(one, payloads.PodPlaced) and one.cycle == cycle]
    for reason in reasons:
        if reason.code != "InsufficientResource" or reason.nodes != len(state.columns.rows):
            continue
        columns, resource = state.columns, reason.resource
        column = columns.resources[resource]
        free = {
            node: int(columns.allocatable[row, column] - columns.used[row, column])
            for node, row in columns.rows.items()
        }
        found = [max(0, *free.values())]
        for decision in placed:
            free[decision.node] -= state.pods[decision.uid].requests.get(resource, 0)
            found.append(max(0, *free.values()))
        assert reason.free in found, (position, reason.message)


@settings(max_examples=examples(12), deadline=None)
@given(st.integers(0, 10**6))
@pytest.mark.parametrize("name", LOGS)
def test_zones_add_up_and_what_is_called_predicted_is_where_the_decision_put_it(name: str, at: int) -> None:
    log = _log(name)
    places = log.hedged() if log.hedged() and at % 2 else range(1, len(log.events) + 1)
    at = places[at // 2 % len(places)]
    listing = asyncio.run(log.inquiry.listing(log.cluster, "zones", RowSelection(), at=str(at)))
    assert listing.position == at
    decided = {payload.uid: payload for _, payload in log.upto(at) if isinstance(payload, payloads.PodPlaced)}
    by_subject = {f"{one.namespace}/{one.name}": one.placement for one in decided.values()}
    for row in listing.rows:
        assert isinstance(row, ZoneRow)
        for item in row.resources:
            have, held, free = (_amount(item.resource, text) for text in (item.allocatable, item.held, item.free))
            assert free == max(0, have - held)
            if item.resource == MEMORY:
                # Which zone of a group it was drawn from is not in the prediction.
                continue
            shares = [_amount(item.resource, pod.amounts.get(item.resource, "0")) for pod in row.pods]
            assert held == sum(shares), (row.name, item.resource)
            for pod, share in zip(row.pods, shares, strict=True):
                placement = by_subject.get(f"{pod.namespace}/{pod.name}")
                if pod.observed or placement is None:
                    continue
                predicted = sum(
                    zone.amount.get(item.resource, 0) for zone in placement.zone_amounts() if zone.zone == row.zone
                )
                perhaps = _amount(item.resource, pod.perhaps.get(item.resource, "0"))
                assert share - perhaps == predicted, (at, row.name, pod.name, item.resource)


def _log(name: str) -> Raw:
    if name == "run-2":
        require_shared(_RUN_2)
    return raw(name)


def _amount(resource: str, text: str) -> int:
    return parse_amount(text, resource=resource, subject="answer", field=resource)


def _folded(log: Raw, position: int) -> ClusterState:
    return ClusterState(log.cluster).fold_all(log.events[:position])


def _free(state: ClusterState, node: str, zone: str, resource: str) -> int:
    row, zones = state.columns.rows[node], state.columns.zones
    topology = state.columns.topologies[row]
    assert topology is not None
    (index,) = (index for index, one in enumerate(topology.zones) if one.name == zone)
    return topology.zones[index].resources[resource].allocatable - int(
        zones.used[row, index, zones.resources[resource]]
    )
