"""Random stories of gangs, nodes and autoscalers: what requests for nodes may never do, and that all of it replays."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.decisions import CycleResult
from kaicore.rules.engine.work.provisioning import ProvisioningConfig
from kaicore.rules.events import payloads
from kaicore.rules.events.payloads import ProvisioningRequested, ProvisioningWithdrawn
from kaicore.rules.objects.provisioning import (
    ACCEPTED,
    BOOKING_EXPIRED,
    CAPACITY_REVOKED,
    FAILED,
    PROVISIONED,
    ProvisioningCondition,
    ProvisioningRequest,
)
from kaicore.rules.state.snapshot import decode_state, encode_state

from tests.given.cluster.factory import pod
from tests.given.examples import examples
from tests.given.work.workloads import Workloads
from tests.measured.digest.engine import replayed

CONFIG = EngineConfig(provisioning=ProvisioningConfig("c", backoff_us=1_000_000, backoff_max_us=8_000_000))

conditions = st.lists(
    st.sampled_from((ACCEPTED, PROVISIONED, FAILED, BOOKING_EXPIRED, CAPACITY_REVOKED)), unique=True, max_size=3
)
#: What happens between two cycles: what, to which gang, and how much of it.
steps = st.lists(
    st.one_of(
        st.tuples(st.just("node"), st.integers(0, 3), st.integers(1, 8)),
        st.tuples(st.just("gone"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("grows"), st.integers(0, 2), st.integers(1, 4)),
        st.tuples(st.just("answer"), st.integers(0, 2), conditions),
        st.tuples(st.just("refused"), st.integers(0, 2), st.sampled_from((403, 404, 0))),
        st.tuples(st.just("created"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("deleted"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("time"), st.integers(0, 30), st.just(0)),
    ),
    max_size=12,
)


class Story(Workloads):
    """A cluster in which requests are followed from outside, by decisions alone."""

    def __init__(self) -> None:
        super().__init__(hashes=True)
        self.sizes: dict[int, int] = {}
        #: The last request of each gang.
        self.last: dict[int, ProvisioningRequested] = {}
        #: Requests that were decided and not withdrawn since, by group.
        self.open: dict[str, ProvisioningRequested] = {}

    def take(self, result: CycleResult) -> None:
        """Follow a cycle's decisions, which must be as they may be."""
        standing = self.before
        for decision in result.provisioning:
            if isinstance(decision, ProvisioningWithdrawn):
                asked = self.open.pop(decision.group)
                assert (asked.name, len(asked.pod_sets)) == (decision.name, decision.pod_sets)
                continue
            assert decision.name not in {one.name for one in self.last.values()}
            other = self.open.get(decision.group)
            assert other is None or standing[decision.group].refused, "one at a time"
            waiting = self.state.workload_index.workloads[decision.group].waiting
            assert sum(pod_set.count for pod_set in decision.pod_sets) <= len(waiting)
            assert all(pod_set.uid in waiting for pod_set in decision.pod_sets)
            self.open[decision.group] = decision
            self.last[int(decision.group.rpartition("-")[2])] = decision
        assert self.state.provisioning.standing.keys() == self.open.keys()

    def run_cycle(self) -> CycleResult:
        """Run a cycle, and follow what it decides."""
        self.before = dict(self.state.provisioning.standing)
        result = self.cycle(CONFIG)
        self.take(result)
        return result

    def do(self, what: str, number: int, how: Any) -> None:
        request = self.last.get(number)
        if what == "node":
            self.add_node(f"n{number}", cpu=how)
        elif what == "grows":
            self.sizes[number] = self.sizes.get(number, 0) + how
            self.gang(f"gang-{number}", self.sizes[number], cpu=3)
        elif what == "gone":
            for one in range(self.sizes.pop(number, 0)):
                self.delete_pod(pod(f"gang-{number}-{one}", cpu=3))
        elif what == "time":
            self.now += number * 1_000_000
        elif request is not None:
            self.answer(what, request, how)

    def answer(self, what: str, request: ProvisioningRequested, how: Any) -> None:
        where, name = request.namespace, request.name
        outcome: payloads.Payload
        if what == "answer":
            met = tuple(ProvisioningCondition(one, True) for one in sorted(how))
            outcome = payloads.ProvisioningRequestObserved(ProvisioningRequest(f"u-{name}", where, name, "1", "c", met))
        elif what == "refused":
            outcome = payloads.ProvisioningRequestRefused(request.group, where, name, how, "Some")
        elif what == "created":
            outcome = payloads.ProvisioningRequestCreated(request.group, where, name)
        else:
            outcome = payloads.ProvisioningRequestDeleted(f"u-{name}", where, name)
        self.record(f"provisioning/{where}/{name}", outcome)


@given(steps)
@settings(max_examples=examples(60), deadline=None)
def test_requests_stand_one_at_a_time_for_groups_that_wait_and_all_of_it_replays(story: list[Any]) -> None:
    cluster = Story()
    cluster.add_node("n0", cpu=2)
    cluster.do("grows", 0, 2)
    for what, number, how in story:
        cluster.do(what, number, how)
        cluster.run_cycle()
        again = cluster.run_cycle()
        assert not [one for one in again.provisioning if isinstance(one, ProvisioningRequested)], "it is asked once"
    assert encode_state(decode_state(encode_state(cluster.state))) == encode_state(cluster.state)
    assert replayed(cluster.events)[3] == []
