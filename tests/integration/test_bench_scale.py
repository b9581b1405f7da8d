"""Every part of the benchmark of scale runs, on a very small cluster: a benchmark that nobody runs rots."""

import os

import pytest
import uvloop

from tests.given.examples import BEYOND_THE_GATE
from tests.measured.bench.scale import binding, growth, head_row, one_scheduler, relaying, replicas
from tests.measured.bench.scale.services import Servers

#: They start services as processes, as many other tests do.
with_services = pytest.mark.skipif("KAI_TEST_LONG" not in os.environ, reason="takes long: KAI_TEST_LONG=1")


@pytest.fixture
def servers(superuser_url: str, nats_url: str) -> Servers:
    return Servers(database_url=superuser_url, nats_url=nats_url)


@BEYOND_THE_GATE
def test_units_of_several_processes_are_all_appended(servers: Servers, cluster_name: str) -> None:
    load = head_row.Load(processes=2, tasks=2, units=3)
    assert uvloop.run(head_row.appending(servers, cluster_name, load)).per_s > 0


@BEYOND_THE_GATE
def test_a_log_from_before_is_relayed_to_its_end(servers: Servers, cluster_name: str) -> None:
    assert uvloop.run(relaying.relaying(servers, cluster_name, relaying.Size(events=1000, runs=1))).per_s > 0


@with_services
def test_pods_that_come_at_a_rate_are_all_placed_and_the_need_of_many_clusters_follows(
    servers: Servers, cluster_name: str
) -> None:
    size = one_scheduler.Size(nodes=10, pods=20, per_s=100, runs=1)
    run = uvloop.run(one_scheduler.sustained(servers, cluster_name, size))
    assert run.placed_per_s > 0
    needs = {one.name.rpartition(": ")[2]: one.value for one in growth.needs(growth.Fleet(), run)}
    assert needs["pods that begin"] == 222.22


def test_replicas_place_everything_in_simulated_time() -> None:
    run = replicas.placed(nodes=10, pods=40, replicas=2, gangs=True)
    assert (run.waiting, run.per_s > 0) == (0, True)


@BEYOND_THE_GATE
def test_a_cost_that_doubles_with_the_size_has_exponent_one() -> None:
    assert growth.exponent([100, 1000], [2, 20]) == pytest.approx(1)
    assert growth.costs(5).fold_us > 0


@with_services
def test_decisions_in_the_log_are_all_bound(servers: Servers, cluster_name: str) -> None:
    assert uvloop.run(binding.bound(servers, cluster_name, binding.Size(nodes=5, pods=20, runs=1))).per_s > 0
