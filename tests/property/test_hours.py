"""The account of hours adds up at every moment, whatever happens to a cluster."""

from collections import Counter
from collections.abc import Sequence
from functools import cache

import msgspec
import pytest
from kaicore.analysis.ask.hours import account
from kaicore.analysis.ask.hours.account import HOUR_US, Account, Period, by_month
from kaicore.analysis.ask.hours.kept import decoded, encoded
from kaicore.analysis.ask.hours.report import Accounted, account_digest
from kaicore.analysis.ask.projections.capacity import gpu_columns, gpus_of_pod
from kaicore.ledger.log.snapshots import read_state, take_state
from kaicore.rules.events.envelope import Event
from kaicore.rules.model.quantity import CPU, MEMORY
from kaicore.rules.state.cluster_state import ClusterState

from tests.given.doubles.virtual_storm import VirtualStorm, blow, lenient
from tests.given.examples import FEW
from tests.simulation.plan import plan_of, with_shares
from tests.simulation.world import run

_SEEDS = [8] if FEW else [1, 4, 8]


@cache
def _simulated(seed: int, *, shares: bool) -> list[list[Event]]:
    """The logs of a story with faults; with shares of GPUs if asked for."""
    plan = plan_of(seed, seconds=1.5)
    return [*run(with_shares(plan) if shares else plan).logs.values()]


def _counted(events: Sequence[Event], *, parts: Sequence[int] = ()) -> list[Period]:
    """The account of a log, one after the other of parts that begin at these positions with a state."""
    state, periods = ClusterState(events[0].cluster), []
    counting = Account(state, events[0].recorded_at)
    for event in events:
        counting.advance(event.recorded_at)
        if event.position in parts:
            periods += counting.finish()
            counting = Account(state, event.recorded_at)
        state.fold(event)
        counting.take(event)
    return [*periods, *counting.finish()]


def _moment_by_moment(events: Sequence[Event]) -> Counter[str]:
    """The same sums, made of the state of each moment alone."""
    state, sums = ClusterState(events[0].cluster), Counter[str]()
    for event, after in zip(events, [*events[1:], events[-1]], strict=True):
        state.fold(event)
        passed = after.recorded_at - event.recorded_at
        if not passed:
            continue
        columns, rows = gpu_columns(state), state.columns.rows
        held = Counter[str]()
        for entry in state.pods.values():
            if entry.charged:
                held[entry.node] += gpus_of_pod(state, entry)
                sums["cpu"] += entry.requests.get(CPU, 0) * passed
                sums["memory"] += entry.requests.get(MEMORY, 0) * passed
        for node in rows.keys() | held.keys():
            offers = int(columns.total[rows[node]]) if node in rows else 0
            sums["held"] += held[node] * passed
            sums["capacity"] += max(offers, held[node]) * passed
        sums["free"] += int(columns.free.sum() + columns.stranded.sum()) * passed
    return sums


def _sums(periods: Sequence[Period]) -> Counter[str]:
    sums = Counter[str]()
    for period in periods:
        for model in period.models.values():
            sums["capacity"] += model.capacity[0]
            sums["held"] += model.held[0]
            sums["free"] += model.capacity[0] - model.held[0] - model.out[0]
            sums["cpu"] += model.held[1]
            sums["memory"] += model.held[2]
    return sums


def _check(events: Sequence[Event]) -> None:
    periods = _counted(events)
    assert _sums(periods) == _moment_by_moment(events)
    for period in periods:
        for resource in range(3):
            owners, models = period.owners.values(), period.models.values()
            held = sum(owner.held[resource] for owner in owners)
            assert held == sum(model.held[resource] for model in models), "by owner and by model alike"
            for owner in owners:
                assert 0 <= owner.borrowed[resource] <= owner.held[resource]
                assert 0 <= owner.idle[resource] <= owner.held[resource]
            for model in models:
                free = model.capacity[resource] - model.held[resource] - model.out[resource]
                assert free >= (0 if resource else model.stranded) >= 0
    begin, end = events[0].recorded_at, events[-1].recorded_at
    assert sum(period.end - period.begin for period in periods) == end - begin


@pytest.mark.parametrize("seed", _SEEDS)
@pytest.mark.parametrize("shares", [False, True], ids=["whole", "shares"])
def test_every_moment_of_a_log_with_faults_is_held_free_or_out_of_service(seed: int, *, shares: bool) -> None:
    for events in _simulated(seed, shares=shares):
        _check(events)


def test_a_storm_adds_up_and_a_log_in_parts_gives_the_same_sums_as_the_whole() -> None:
    storm = VirtualStorm(f"groups:{lenient('single-numa-node', count=2)}", seed=3)
    blow(storm, 3)
    events = storm.cluster.events
    _check(events)
    parts = [len(events) // 3, 2 * len(events) // 3]
    assert _sums(_counted(events, parts=parts)) == _sums(_counted(events))


def _kept(events: Sequence[Event]) -> list[Period]:
    """The account as it is kept: each hour for itself, from a state that was saved."""
    state, hours = ClusterState(events[0].cluster), []
    counting = Account(state, events[0].recorded_at)
    for event in events:
        begin = event.recorded_at // HOUR_US * HOUR_US
        if state.position and begin > state.recorded_at:
            counting.advance(begin)
            hours += counting.finish()
            state = read_state(state.cluster, take_state(state))
            counting = Account(state, begin)
        counting.advance(event.recorded_at)
        state.fold(event)
        counting.take(event)
    read = [decoded(encoded(hour, ("project",)), ()) for hour in hours]
    return [*(hour for hour in read if hour is not None), *counting.finish()]


def _digest(hours: Sequence[Period]) -> str:
    return account_digest(Accounted("c", hours[0].begin, hours[-1].end, hours[-1].position, by_month(hours)))


@pytest.mark.parametrize("shares", [False, True], ids=["whole", "shares"])
def test_hours_that_are_kept_sum_up_to_the_account_folded_from_the_log(
    monkeypatch: pytest.MonkeyPatch, *, shares: bool
) -> None:
    for log in _simulated(_SEEDS[0], shares=shares):
        begin = log[0].recorded_at
        slower = 7 * HOUR_US // max(log[-1].recorded_at - begin, 1) + 1
        events = [
            msgspec.structs.replace(event, recorded_at=begin + (event.recorded_at - begin) * slower) for event in log
        ]
        whole, kept = _counted(events), _kept(events)
        assert len(kept) >= 7
        assert _digest(kept) == _digest(whole)
        with monkeypatch.context() as patched:
            patched.setattr(account, "HOUR_US", 1 << 62)
            in_one = _counted(events)
        # What is lost and waited is that of pods' whole lives, wherever hours end.
        assert _lost(in_one) == _lost(whole)


def test_hours_without_an_event_are_counted_once_and_sum_up_to_each_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    log = _simulated(_SEEDS[0], shares=False)[0]
    # While some work waits and some runs, over the end of a month.
    half, days = len(log) // 2, 40 * 24 * HOUR_US
    events = [*log[:half], *(msgspec.structs.replace(one, recorded_at=one.recorded_at + days) for one in log[half:])]
    few = _counted(events)
    assert len(few) <= 8
    with monkeypatch.context() as patched:
        patched.setattr(Account, "_equal_hours", lambda *_: 0)
        each = _counted(events)
    assert len(each) > 40 * 24
    assert _digest(few) == _digest(each)


def _lost(hours: Sequence[Period]) -> list[object]:
    (month,) = by_month(hours)
    return [
        (owner, held.held, held.idle, held.evicted, held.failed, sorted(held.waits), sorted(held.waiting))
        for owner, held in sorted(month.owners.items())
    ]
