"""Choices of one round at the hub: within what offers say is free, spread over clusters, within bounds of queues."""

from collections.abc import Mapping, Sequence
from itertools import count

from hypothesis import given
from hypothesis import strategies as st
from kaicore.ledger.log.memory import MemoryLog
from kaicore.rules.events.envelope import NewEvent, Unit, derived_id
from kaicore.rules.events.payloads import (
    ClusterRegistered,
    DispatchGiven,
    DispatchSubmitted,
    HubPayload,
    Offer,
    QueueBounded,
)
from kaicore.rules.hub.choosing import (
    STARTS_AFTER_EVICTIONS,
    STARTS_NOW,
    WAITS,
    WEIGHTS,
    ClusterRoom,
    choose,
    over_bound,
    rescored,
    scored,
)
from kaicore.rules.hub.hub_state import HUB, HubState, cluster_stream, dispatch_stream, queue_stream
from kaicore.rules.hub.steps import bounds_of, give
from kaicore.rules.model.pod import Amounts

CLUSTERS = ("a", "b", "c")
amounts = st.fixed_dictionaries({"cpu": st.integers(0, 20), "gpu": st.integers(0, 4)})
rooms = st.builds(ClusterRoom, total=amounts, held=amounts)
prospects = st.sampled_from((STARTS_NOW, STARTS_NOW, STARTS_AFTER_EVICTIONS, WAITS))


def choices_of(
    demands: Sequence[Amounts], tried: Sequence[Sequence[str]], left: Mapping[str, ClusterRoom]
) -> list[Offer | None]:
    """Choose for one dispatch after the other, as a hub does in one round."""
    chosen: list[Offer | None] = []
    for demand, by_cluster in zip(demands, tried, strict=True):
        offers = [Offer(cluster=name, prospect=prospect) for name, prospect in zip(left, by_cluster, strict=True)]
        best = choose(scored(rescored(offers, left, "q", demand), {}, WEIGHTS))
        if best is not None:
            left[best.cluster].charge("q", demand)
        chosen.append(best)
    return chosen


@given(left=st.lists(rooms, min_size=3, max_size=3), work=st.lists(st.tuples(amounts, st.tuples(*[prospects] * 3))))
def test_what_starts_beside_others_of_its_round_is_within_what_was_free(
    left: list[ClusterRoom], work: list[tuple[Amounts, tuple[str, ...]]]
) -> None:
    free = [{one: room.total[one] - room.held[one] for one in room.total} for room in left]
    demands = [demand for demand, _ in work]
    chosen = choices_of(demands, [prospects for _, prospects in work], dict(zip(CLUSTERS, left, strict=True)))
    for name, there in zip(CLUSTERS, free, strict=True):
        given_there = Amounts()
        for place, (offer, demand) in enumerate(
            (offer, demand) for offer, demand in zip(chosen, demands, strict=True) if offer and offer.cluster == name
        ):
            for resource, amount in demand.items():
                given_there[resource] = given_there.get(resource, 0) + amount
            if place and offer.prospect == STARTS_NOW:
                assert all(not demand[one] or given_there[one] <= there[one] for one in demand)


@given(st.integers(1, 12))
def test_equal_dispatches_of_one_round_are_spread_over_equal_clusters(dispatches: int) -> None:
    left = {name: ClusterRoom(total={"cpu": 100}, held={"cpu": 0}) for name in CLUSTERS}
    chosen = choices_of([{"cpu": 8}] * dispatches, [[STARTS_NOW] * 3] * dispatches, left)
    counts = [sum(offer is not None and offer.cluster == name for offer in chosen) for name in CLUSTERS]
    assert sum(counts) == dispatches
    assert max(counts) - min(counts) <= 1


async def test_of_two_hubs_that_give_on_one_bound_at_once_the_log_takes_one() -> None:
    log, numbers = MemoryLog(clock=lambda: 0), count()

    def unit(stream: str, payload: HubPayload) -> Unit:
        return Unit((NewEvent(derived_id(HUB, str(next(numbers))), stream, payload, "test", 0),))

    await log.append(
        HUB,
        [
            *(unit(cluster_stream(name), ClusterRegistered(cluster=name)) for name in CLUSTERS),
            unit(queue_stream("org"), QueueBounded(queue="org", limits={"cpu": 3})),
            *(
                unit(dispatch_stream(name), DispatchSubmitted(name, "[]", queue="team", demand={"cpu": 2}))
                for name in ("one", "two", "three")
            ),
        ],
    )

    async def at_the_end() -> HubState:
        state = HubState()
        for event in await log.read(HUB):
            state.fold(event)
        return state

    def decided(hub: str, state: HubState, dispatch: str, cluster: str) -> Unit:
        path = ("team", "org")
        held = {"cpu": sum(2 for entry in state.dispatches.values() if entry.cluster)}
        unit = give(
            state.dispatches[dispatch],
            [Offer(cluster=cluster, prospect=STARTS_NOW, capacity=100)],
            weights=WEIGHTS,
            clock=0,
            actor=hub,
            held_back=over_bound(path, state.bounds, {"org": held}, {"cpu": 2}),
            bounded=bounds_of(state, path),
        )
        assert unit is not None
        return unit

    state = await at_the_end()
    (first,) = await log.append(HUB, [decided("hub/1", state, "one", "a")])
    (second,) = await log.append(HUB, [decided("hub/2", state, "two", "b")])
    assert (first.stale, second.stale is None) == (None, False)

    state = await at_the_end()
    assert not isinstance(decided("hub/2", state, "two", "b").events[0].payload, DispatchGiven)
    assert [entry.name for entry in state.dispatches.values() if entry.cluster] == ["one"]
