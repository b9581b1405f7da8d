"""The cluster that a dispatch is given to: each part of an offer decides where the others are equal."""

from typing import Any

import pytest
from kaicore.rules.events.payloads import Offer
from kaicore.rules.hub.choosing import (
    STARTS_AFTER_EVICTIONS,
    STARTS_NOW,
    WAITS,
    WEIGHTS,
    capacity_part,
    choose,
    locality_part,
    over_bound,
    scored,
    share_part,
    topology_part,
)
from kaicore.rules.model.gpu_share import SHARED_GPU

NOW = capacity_part(STARTS_NOW, left=50)
EVICTING = capacity_part(STARTS_AFTER_EVICTIONS, left=90)
NEVER = capacity_part(WAITS, left=90)


def offer(cluster: str, **parts: Any) -> Offer:
    equal: dict[str, Any] = {"capacity": NOW, "topology": 100, "share": 100, "locality": 100}
    return Offer(cluster, **{**equal, **parts})


@pytest.mark.parametrize(
    ("offers", "costs", "chosen"),
    [
        ([offer("a"), offer("b")], {}, "a"),
        ([offer("b"), offer("a", capacity=EVICTING)], {}, "b"),
        ([offer("a"), offer("b", capacity=capacity_part(STARTS_NOW, left=60))], {}, "b"),
        (
            [offer("a", locality=locality_part(("x", "y"), ("y",))), offer("b", locality=locality_part("x", "x"))],
            {},
            "b",
        ),
        ([offer("a", topology=topology_part([1, 3])), offer("b", topology=topology_part([2, 1]))], {}, "b"),
        ([offer("a", share=share_part({"gpu": 8}, {"gpu": 10}, {"gpu": 1})), offer("b", share=50)], {}, "b"),
        ([offer("a"), offer("b")], {"a": 3, "b": 2}, "b"),
        ([offer("a"), offer("b")], {"b": 2}, "a"),
        ([offer("a", unfit="is drained"), offer("b", capacity=EVICTING)], {}, "b"),
        ([offer("a", capacity=NEVER), offer("b", capacity=EVICTING, locality=0, topology=0, share=0)], {}, "b"),
        ([offer("a", capacity=NEVER), offer("b", unfit="is lost")], {}, None),
    ],
    ids=[
        "equal-first-by-name",
        "starts-now-before-evicting",
        "more-room-is-left",
        "nearer-to-its-data",
        "fewer-domains",
        "queue-further-below-its-share",
        "cheaper",
        "no-cost-is-as-cheap-as-the-cheapest",
        "unfit-is-never-chosen",
        "what-would-wait-is-never-chosen",
        "none-can-start-it",
    ],
)
def test_the_better_of_two_offers_is_chosen(offers: list[Offer], costs: dict[str, int], chosen: str | None) -> None:
    for order in (offers, offers[::-1]):
        best = choose(scored(order, costs, WEIGHTS))
        assert (None if best is None else best.cluster) == chosen


def test_weights_say_what_outweighs_what() -> None:
    near_and_dear, far_and_cheap = offer("near"), offer("far", locality=0)
    costs = {"near": 100, "far": 1}
    assert [one.score for one in scored([near_and_dear, far_and_cheap], costs, {"cost": 1})] == [100, 1]
    for weights, chosen in ((WEIGHTS, "near"), ({**WEIGHTS, "cost": 9}, "far")):
        best = choose(scored([near_and_dear, far_and_cheap], costs, weights))
        assert best is not None
        assert best.cluster == chosen


def test_bound_of_any_queue_above_counts() -> None:
    bounds, held = {"all": {"gpu": 8}}, {"all": {"gpu": 6000}, "team": {"gpu": 2000}}
    assert over_bound(("team", "all"), bounds, held, {"gpu": 2}) == ""
    broken = "queue all: may hold 8 gpu in all clusters, holds 6, 3 asked for"
    assert over_bound(("team", "all"), bounds, held, {"gpu": 3}) == broken


def test_share_counts_in_a_bound_in_thousandths() -> None:
    bounds, held, half = {"all": {"gpu": 8}}, {"all": {"gpu": 7500}}, {"cpu": 1, SHARED_GPU: 500}
    assert over_bound(("all",), bounds, held, half) == ""
    held["all"]["gpu"] += 1
    broken = "queue all: may hold 8 gpu in all clusters, holds 7.501, 0.5 asked for"
    assert over_bound(("all",), bounds, held, half) == broken
