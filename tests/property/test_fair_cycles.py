"""Whichever was first: in the end every queue has its fair share, within one unit."""

from typing import Any

from hypothesis import given, note, settings
from hypothesis import strategies as st
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events import payloads
from kaicore.rules.groups.labels import KAI_QUEUE_LABEL
from kaicore.rules.queues.division import FairShareConfig
from kaicore.rules.queues.tree import UNLIMITED

from tests.given.cluster.factory import pod
from tests.given.cluster.hierarchy import number, queue
from tests.given.examples import examples
from tests.given.work.workloads import OWNER, Workloads

CONFIG = EngineConfig(fair_share=FairShareConfig(k_milli=0))
#: A department of two teams with a limit, one with only one, and a team of its own.
LEAVES = {"d1": "d", "d2": "d", "e1": "e", "f": ""}


@st.composite
def hierarchies(draw: st.DrawFn) -> dict[str, dict[str, Any]]:
    """Queues with quotas that the cluster has; teams ask for more or less than they are due."""
    quotas = {name: draw(st.integers(0, 3)) for name in LEAVES}
    quotas["d"], quotas["e"] = quotas["d1"] + quotas["d2"], quotas["e1"]
    limit = draw(st.just(UNLIMITED) | st.integers(quotas["d"], 10))
    return {
        name: {"quota": quotas[name], "weight": draw(st.integers(1, 3)), "limit": limit if name == "d" else UNLIMITED}
        for name in ("d", "e", *LEAVES)
    }


@settings(max_examples=examples(40), deadline=None)
@given(hierarchies(), st.fixed_dictionaries(dict.fromkeys(LEAVES, st.integers(0, 16))), st.permutations(sorted(LEAVES)))
def test_cycles_end_with_every_queue_within_a_unit_of_the_share(
    shares: dict[str, dict[str, Any]], demands: dict[str, int], order: list[str]
) -> None:
    cluster = Workloads().add_nodes(2, cpu=64, gpu=8)
    for name, share in shares.items():
        above = LEAVES.get(name, "")
        cluster.record(f"queue/{name}", payloads.QueueObserved(queue(name, above, **share)))
    made = 0

    def settle() -> None:
        nonlocal made
        for _ in range(40):
            result = cluster.cycle(CONFIG)
            for decision in result.placements:
                cluster.run(cluster.state.pods[decision.uid].pod)
            for eviction in result.evictions:
                victim = cluster.state.pods[eviction.uid].pod
                cluster.delete_pod(victim)
                made += 1
                cluster.add_pod(pod(f"again-{made}", cpu=1, gpu=1, labels=victim.labels, owner=OWNER, created_at=made))
            if not result.batches:
                return
        raise AssertionError("does not come to rest")

    for name in order:
        for _ in range(demands[name]):
            made += 1
            labels = {KAI_QUEUE_LABEL: name}
            cluster.add_pod(pod(f"p{made}", cpu=1, gpu=1, labels=labels, owner=OWNER, created_at=made))
        settle()
    accounts = cluster.state.queue_accounts(CONFIG, now=cluster.now)
    place = accounts.tree.resources.index("gpu")
    for name in LEAVES:
        index = number(accounts.tree, name)
        used, fair = accounts.used[index][place], accounts.shares.fair[index][place]
        note(f"{name}: {used} of {fair}")
        assert abs(used - fair) <= 1
