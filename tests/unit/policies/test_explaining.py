"""Answers about a shard with policies, by a process that has their code, and by one that has not."""

import numpy as np
import pytest
from kai_cli.asking.why_page import why_text
from kaicore.analysis.ask.answers import Why
from kaicore.analysis.ask.queries import Inquiry
from kaicore.analysis.trial.dispatching import TriedDispatch, try_dispatches
from kaicore.policy import Facts, Flags, Ints, Nodes, Policy, Running, Work
from kaicore.rules.deciding.forecast.start import NoForecast, StartForecast, forecast_starts
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.policies.book import NO_POLICIES, PolicyBook
from kaicore.rules.hub.choosing import STARTS_NOW, WAITS
from kaicore.rules.state.fork import fork

from tests.given.cluster.factory import pod
from tests.given.logs.stored import stored
from tests.given.work.groups import job
from tests.given.work.past_runs import SECOND, PastRuns
from tests.given.work.policies import SpotLast, WithPolicies, setting_of
from tests.given.work.workloads import OWNER


class NotOnSpot(Policy):
    name, reason = "not-on-spot", "spot is for service"
    node_labels = ("spot",)

    def filter(self, nodes: Nodes, work: Work, facts: Facts) -> Flags:
        allowed: Flags = nodes.labels("spot") != "true"
        return allowed


class Fails(NotOnSpot):
    def filter(self, nodes: Nodes, work: Work, facts: Facts) -> Flags:
        raise ValueError


class Emptiest(Policy):
    name, band = "emptiest", "full"

    def score(self, nodes: Nodes, work: Work, facts: Facts) -> Ints:
        return np.minimum(nodes.free("nvidia.com/gpu") * 100, 1000)


class KeepNotebooks(Policy):
    name, pod_labels = "keep-notebooks", ("notebook",)

    def victims(self, running: Running, facts: Facts) -> int:
        return 700 if "notebook" in running.labels else 0


def two_nodes(*kinds: type[Policy]) -> WithPolicies:
    made = WithPolicies(*kinds)
    made.add_node("spot", cpu=64, gpu=8, labels={"spot": "true"})
    made.add_node("stays", cpu=64, gpu=8)
    return made


async def why(made: WithPolicies, name: str, book: PolicyBook) -> Why:
    return await Inquiry(await stored(made), policies=book).why(made.cluster, "Pod", "default", name)


def waiting() -> WithPolicies:
    """Its pod fits on the node that the policy refuses only."""
    made = two_nodes(NotOnSpot)
    made.add_pod(pod("first", cpu=1, gpu=4))
    made.decided()
    made.add_pod(pod("late", cpu=1, gpu=8))
    made.decided()
    return made


async def test_policy_that_made_the_difference_is_named_with_its_scores() -> None:
    made = two_nodes(SpotLast, Emptiest)
    made.add_pod(pod("one", cpu=1, gpu=4))
    made.decided()
    placed = (await why(made, "one", made.book)).placement
    assert placed is not None
    assert placed.because == "policy spot-last: 500 against 0 on spot, the next of 2 nodes"
    assert [(one.node, one.policies) for one in placed.nodes] == [
        ("stays", {"spot-last": 500, "emptiest": 800}),
        ("spot", {"spot-last": 0, "emptiest": 800}),
    ]
    text = why_text(await why(made, "one", made.book))
    assert "policy spot-last: 500 against 0 on spot" in text
    assert text.splitlines()[3].split()[-2:] == ["spot-last", "emptiest"]


async def test_policy_that_fills_a_band_is_named_where_those_above_are_equal() -> None:
    made = WithPolicies(Emptiest)
    made.add_node("small", cpu=64, gpu=4)
    made.add_node("large", cpu=64, gpu=8)
    made.add_pod(pod("one", cpu=1, gpu=1))
    made.decided()
    placed = (await why(made, "one", made.book)).placement
    assert placed is not None
    assert placed.because == "policy emptiest: 800 against 400 on small, the next of 2 nodes"


async def test_process_without_the_code_of_a_policy_says_so_and_names_the_digests() -> None:
    made = two_nodes(SpotLast)
    made.add_pod(pod("one", cpu=1, gpu=4))
    made.decided()
    placed = (await why(made, "one", NO_POLICIES)).placement
    assert placed is not None
    assert placed.not_ranked == (
        "policy spot-last 1: the cycle was decided by source of-SpotLast; its source is not here"
    )


async def test_nodes_that_a_policy_refuses_are_no_way_out_and_changes_are_tried_with_it() -> None:
    made = waiting()
    known = await why(made, "late", made.book)
    assert any("refused by policy not-on-spot: spot is for service" in one.message for one in known.reasons)
    assert ["FilteredByPolicy"] in [one.reasons for one in known.nodes if one.node == "spot"]
    assert known.starts_if is not None
    assert known.starts_if.tried > 0
    assert "spot" not in {one.node for one in known.starts_if.remedies}
    assert not any("policies" in note for note in known.notes)
    unknown = await why(made, "late", NO_POLICIES)
    assert unknown.starts_if is not None
    assert unknown.starts_if.tried == 0
    note = "this leaves out policies of the shard, for their code is not here, or they fail: not-on-spot"
    assert note in unknown.notes


async def test_policy_that_fails_in_an_answer_is_left_out_of_it_and_named() -> None:
    made = waiting()
    book = PolicyBook()
    book.add(Fails, made.config.policies[0].digest)
    answer = await why(made, "late", book)
    assert answer.notes[-1].endswith("or they fail: not-on-spot")
    assert answer.starts_if is not None
    assert answer.starts_if.tried == 0


async def test_victim_chosen_by_a_policys_extra_cost_names_the_policy() -> None:
    made = WithPolicies(KeepNotebooks)
    for number, labels in enumerate(({}, {"notebook": "yes"})):
        made.add_node(f"n{number}", cpu=64, gpu=8)
        made.now += 3_600_000_000
        one = made.add_pod(pod(f"p{number}", cpu=1, gpu=8, labels=labels, priority=1, owner=OWNER))
        made.decided()
        made.run(one)
    made.add_pod(pod("urgent", cpu=1, gpu=8, priority=50, owner=OWNER))
    made.decided()
    (eviction,) = (await why(made, "p0", made.book)).evictions
    assert "; policy keep-notebooks adds 0 to the cost, and 700 to that one" in eviction.choice


def test_forecast_knows_the_nodes_that_a_policy_refuses() -> None:
    made = PastRuns()
    made.have_run("train", [300.0] * 20, cpu=1, gpu=8)
    made.add_node("stays", cpu=64, gpu=8)
    started_s = made.now // SECOND
    one = made.add_pod(pod("train-100", cpu=1, gpu=8, owner=job(made, "train-100")))
    made.cycle()
    made.see(one, node_name="stays", phase="Running", start_time=started_s)
    made.after(60)
    made.add_node("spot", cpu=64, gpu=8, labels={"spot": "true"})
    late = made.add_pod(pod("late", cpu=1, gpu=8))
    config, book, key = EngineConfig(policies=(setting_of(NotOnSpot),)), PolicyBook(), made.state.pods[late.uid].group
    book.add(NotOnSpot, config.policies[0].digest)

    def start(policies: PolicyBook) -> StartForecast | NoForecast:
        return forecast_starts(made.state, config, made.history(), [key], now=made.now, policies=policies)[key]

    known, unknown = start(book), start(NO_POLICIES)
    assert isinstance(known, StartForecast)
    assert isinstance(unknown, StartForecast)
    assert known.p50_us == pytest.approx(240 * SECOND, abs=12 * SECOND)
    assert unknown.p50_us == 0


def test_hub_offers_no_start_on_nodes_that_a_policy_refuses() -> None:
    made = WithPolicies(NotOnSpot)
    made.add_node("spot", cpu=64, gpu=8, labels={"spot": "true"})
    made.add_pod(pod("other", cpu=1, gpu=1))
    made.decided()
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one", "namespace": "default"}}
    spec = {"schedulerName": "kai-ledger", "containers": [{"name": "main", "image": "x"}]}
    wanted = TriedDispatch("d", [manifest | {"spec": spec}], "", {})

    def prospect(policies: PolicyBook) -> str:
        offers, _ = try_dispatches(fork(made.state), [], [wanted], now=made.now, policies=policies)
        return offers["d"].prospect

    assert (prospect(made.book), prospect(NO_POLICIES)) == (WAITS, STARTS_NOW)
