"""From when on one of two schedulers of a shard may decide."""

from dataclasses import dataclass

from kai_scheduler.replicas import Standby

PATIENCE_S = 3.0


@dataclass
class Seen:
    """The live members, as the bus has reported them."""

    live: tuple[str, ...] = ()
    settled: bool = False
    fresh: bool = False
    started: bool = False
    pulses: int = 0

    def start(self) -> None:
        self.started = True

    def pulse(self) -> None:
        self.pulses += 1


class Clock:
    now = 100.0

    def __call__(self) -> float:
        # Time passes between any two looks.
        self.now += 1e-6
        return self.now


def test_the_first_of_those_that_are_live_decides_and_the_next_one_as_soon_as_it_is_gone() -> None:
    clock, seen, shown = Clock(), Seen(), list[bool]()
    standby = Standby(standby_s=PATIENCE_S, monotonic=clock, live=seen, member="2", notify=shown.append)
    standby.begin()
    assert seen.started
    assert standby.decides_at() > clock.now, "it is not known yet who else is there"
    seen.live, seen.settled, seen.fresh = ("1", "2"), True, True
    standby.heard()
    clock.now += 60
    assert standby.decides_at() > clock.now, "however long the first one has had nothing to decide"
    seen.live = ("2",)
    before = clock.now
    assert standby.decides_at() <= before
    assert shown == [False, True]
    assert seen.pulses == 3


def test_without_an_answer_of_the_bus_the_last_cycle_of_another_one_counts() -> None:
    clock = Clock()
    never_answered, silent_since = Seen(), Seen(("1", "2"), settled=True)
    for live in (None, never_answered, silent_since):
        standby = Standby(standby_s=PATIENCE_S, monotonic=clock, live=live, member="2")
        standby.begin()
        clock.now += PATIENCE_S
        before = clock.now
        assert standby.decides_at() <= before
        standby.heard()
        assert standby.decides_at() > clock.now + 0.9 * PATIENCE_S
