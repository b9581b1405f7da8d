"""Run times of pods, as cycles know them: by the closest runs with enough that got older."""

import pytest
from kaicore.analysis.ask.answers import GroupRow, RowSelection
from kaicore.analysis.ask.listing import list_rows
from kaicore.analysis.json_spelling import time_text
from kaicore.rules.engine.config import Action, Backfill, EngineConfig
from kaicore.rules.events.reasons.making_room import RoomPromised
from kaicore.rules.state.indexes.past_runs import Basis, RunTimes
from kaicore.rules.state.snapshot import decode_state, encode_state

from tests.given.cluster.factory import pod
from tests.given.work.workloads import Workloads

_MINUTE_US = 60_000_000
_KEYS = {basis: basis.value for basis in Basis}
_OTHERS = {**_KEYS, Basis.OWNER: "another", Basis.CLASS: "another"}


@pytest.mark.parametrize(
    ("lengths", "age", "per_cent", "minutes"),
    [
        ([10, 20, 30, 40, 50], 0, 50, 30),
        ([10, 20, 30, 40, 50], 0, 100, 50),
        ([10, 20, 30, 40, 50], 0, 1, 10),
        ([10, 20, 30, 40], 0, 50, None),
        ([10, 20, 30, 40, 50, 60], 10, 50, 30),
        ([10, 20, 30, 40, 50, 60], 20, 50, None),
        ([50, 10, 40, 20, 30], 5, 75, 35),
    ],
)
def test_run_lasts_as_long_as_a_part_of_those_that_got_as_old(
    lengths: list[int], age: int, per_cent: int, minutes: int | None
) -> None:
    times = RunTimes()
    for number, length in enumerate(lengths):
        times.ended(_KEYS, f"uid-{number}", ran_us=length * _MINUTE_US, at_us=number)
    found = times.remaining_us(_KEYS, age_us=age * _MINUTE_US, per_cent=per_cent)
    assert found == (-1 if minutes is None else minutes * _MINUTE_US)
    assert times.remaining_us(_OTHERS, age_us=0, per_cent=per_cent) == -1, "it takes more runs of less alike pods"


def test_pods_of_one_owner_that_end_together_are_one_run() -> None:
    times = RunTimes()
    for number in range(64):
        times.ended(_KEYS, "uid-gang", ran_us=_MINUTE_US, at_us=number)
    assert [len(kind.lengths_us) for kind in times.record()] == [1, 1, 1, 1]


class Story(Workloads):
    """A node of 8 GPUs on which pods `train-<number>` ran for ten minutes each, `short-<number>` for one; one runs."""

    def __init__(self) -> None:
        super().__init__()
        self.add_node("n0", cpu=64, gpu=8)
        for name, minutes in (("train", 10), ("short", 1)):
            for number in range(5):
                one = self.add_pod(pod(f"{name}-{number}", cpu=1, gpu=8))
                self.cycle()
                self.run(one)
                self.now += minutes * _MINUTE_US
                self.delete_pod(one)
        self.last = self.add_pod(pod("train-9", cpu=1, gpu=4))
        self.cycle()
        self.run(self.last)

    def promised(self, per_cent: int) -> RoomPromised:
        """The promise to a gang that needs the whole node."""
        expecting = EngineConfig(actions=(Action.ALLOCATE,), run_time_per_cent=per_cent, hold_after_us=0)
        self.gang("whole", 2, cpu=1, gpu=4, created_at=1)
        result = self.cycle(expecting)
        (promise,) = (one for item in result.groups for one in item.reasons if isinstance(one, RoomPromised))
        return promise


def test_promised_start_without_limits_is_told_by_the_runs_of_like_pods() -> None:
    story = Story()
    began = story.now
    promise = story.promised(50)
    assert abs(promise.starts_at - began - 10 * _MINUTE_US) < 1_000_000
    assert (promise.unlimited, promise.expected) == (1, 1)
    assert "1 pod without a time limit must end (1 by then, by the runs of like pods)" in str(promise)
    (row,) = list_rows(story.state, "groups", RowSelection(name="whole"))
    assert isinstance(row, GroupRow)
    assert (row.expected_start, row.expected_from) == (time_text(promise.starts_at), "promise")


def test_without_the_setting_nothing_tells_when_pods_without_limits_end() -> None:
    promise = Story().promised(0)
    assert (promise.starts_at, promise.unlimited, promise.expected) == (0, 1, 0)


def test_only_groups_expected_to_end_before_the_promised_start_pass_it() -> None:
    story = Story()
    story.promised(50)
    story.now += _MINUTE_US
    for name in ("train-10", "other", "short-10"):
        story.add_pod(pod(name, cpu=1, gpu=2, created_at=2))
    expecting = EngineConfig(actions=(Action.ALLOCATE,), backfill=Backfill.EASY, run_time_per_cent=50)
    assert list(story.placed(story.cycle(expecting))) == ["short-10"]


def test_run_times_are_the_same_after_a_snapshot() -> None:
    state = Story().state
    assert state.run_times.record()
    assert decode_state(encode_state(state)).run_times.record() == state.run_times.record()


def test_evicted_pods_tell_nothing_of_run_times() -> None:
    cluster = Workloads().add_node("n0", cpu=64, gpu=8)
    cluster.full(cluster.add_pod(pod("low", cpu=1, gpu=8, priority=1)))
    cluster.add_pod(pod("high", cpu=1, gpu=8, priority=9))
    result = cluster.cycle()
    assert list(cluster.evicted(result)) == ["low"]
    cluster.go(result)
    assert not cluster.state.run_times.record()
