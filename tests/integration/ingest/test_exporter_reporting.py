"""Exporters between a kubelet on its socket and an ingest on Postgres."""

from contextlib import AsyncExitStack
from pathlib import Path

import grpc
from kaicore.kube.wire.kubelet_checkpoints import CPU_STATE
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.events import payloads
from kaicore.rules.model.pod import ContainerKind

from tests.given.cluster.factory import container
from tests.given.cluster.podresources import Kubelet, pod, serving, write_sysfs
from tests.given.cluster.state_files import write_state_files
from tests.given.processes.exporting import GI, Exporting, seen
from tests.given.processes.ingest_service import Facts, Observations, RunningIngest, running_ingest


async def test_from_the_kubelet_into_the_log(
    exporting: Exporting, kubelet: Kubelet, facts: Facts, observed: Observations
) -> None:
    await facts.append(seen("a"), seen("b"))
    kubelet.pods = [
        pod("a", cpus=[4, 5], gpus={"g0": [1], "g1": [0, 1], "g2": []}, memory=[("memory", GI, (0, 1))]),
        pod("b"),
    ]
    async with exporting("n1") as running:
        (payload,) = await observed.reach(1)
        (container,) = payload.placement.containers
        assert [(zone.zone, zone.amount) for zone in container.zones] == [
            ("node-1", {"cpu": 2000, "nvidia.com/gpu": 1})
        ]
        assert [(span.zones, span.amount) for span in container.spans] == [
            (("node-0", "node-1"), {"memory": GI, "nvidia.com/gpu": 1})
        ]
        kubelet.pods = [pod("b", cpus=[0]), pod("a", cpus=[0, 1])]
        await observed.reach(3)
        assert sorted((await observed.summary())[1:]) == ["a node-0:cpu=2000", "b node-0:cpu=1000"]
        assert running.health.ready
        assert running.logs == []


async def test_state_files_tell_init_containers_and_a_torn_one_is_done_without(
    exporting: Exporting, kubelet: Kubelet, facts: Facts, observed: Observations
) -> None:
    directory = exporting.directory / "n1"
    setup, main = container("setup", ContainerKind.INIT, cpu=3), container("main", cpu=1)
    for name in ("a", "b"):
        await facts.append(seen(name, containers=(setup, main)))
    write_state_files(directory, {"uid-a": {"setup": "4-6", "main": "4"}})
    kubelet.pods = [pod("a", cpus=[4])]
    async with exporting("n1") as running:
        (payload,) = await observed.reach(1)
        assert (payload.uid, payload.placement.init) == ("uid-a", ("setup",))
        assert [item.zones[0].amount for item in payload.placement.containers] == [{"cpu": 1000}, {"cpu": 2000}]
        (directory / CPU_STATE).write_text('{"policyName":"static","defaultCpuSet":"0","entr')
        kubelet.pods = [pod("a", cpus=[4]), pod("b", cpus=[1])]
        _, payload = await observed.reach(2)
        assert (payload.name, payload.placement.init) == ("b", None)
        (line,) = running.lines("state files are not used, only podresources")
        assert line.startswith(f"Node n1: {directory / CPU_STATE}: content: ")
        assert running.counted("state_file_problems_total") > 0
        write_state_files(directory, {"uid-a": {"setup": "4-6", "main": "4"}, "uid-b": {"main": "1"}})
        *_, payload = await observed.reach(3)
        assert (payload.name, payload.placement.init) == ("b", ())


async def test_what_does_not_change_is_not_sent_again(
    exporting: Exporting, kubelet: Kubelet, facts: Facts, observed: Observations, ingest: RunningIngest
) -> None:
    await facts.append(seen("a"), seen("b"))
    kubelet.pods = [pod("a", cpus=[0])]
    async with exporting("n1"):
        await observed.reach(1)
        await kubelet.asked(5)
        kubelet.pods = [pod("a", cpus=[0]), pod("b", cpus=[1])]
        await observed.reach(2)
    assert ingest.counted("unchanged_pods_total") == 0


async def test_the_drift_pass_mends_what_a_poll_cannot_see(
    exporting: Exporting, kubelet: Kubelet, facts: Facts, observed: Observations
) -> None:
    """A pod is made anew under its name and gets the very same CPUs between two polls."""
    await facts.append(seen("a", uid="u1"))
    kubelet.pods = [pod("a", cpus=[0])]
    async with exporting("n1", drift_s=0.2):
        await observed.reach(1)
        await facts.append(("pod/u1", payloads.PodDeleted("u1", "default", "a")), seen("a", uid="u2"))
        await observed.reach(2)
    assert [payload.uid for payload in await observed.payloads()] == ["u1", "u2"]


async def test_a_pod_that_ingest_does_not_know_yet_is_repeated(
    exporting: Exporting, kubelet: Kubelet, facts: Facts, observed: Observations, ingest: RunningIngest
) -> None:
    kubelet.pods = [pod("a", cpus=[0])]
    async with exporting("n1") as running:
        while not running.counted("pods_total", result="unknown"):
            await kubelet.asked()
        await facts.append(seen("a"))
        await observed.reach(1)
        while running.counted("untold_pods"):
            await kubelet.asked()
    assert len(ingest.lines("observation refused")) == 1


async def test_kubelet_that_comes_late_or_goes_is_waited_for(
    exporting: Exporting, facts: Facts, observed: Observations, tmp_path: Path
) -> None:
    write_sysfs(tmp_path / "n1/sys", {0: "0-3"})
    await facts.append(seen("a"), seen("b"))
    kubelet, socket = Kubelet(), tmp_path / "n1/kubelet.sock"
    kubelet.pods = [pod("a", cpus=[0])]
    async with exporting("n1") as running:
        async with serving(kubelet, socket):
            await observed.reach(1)
        socket.unlink(missing_ok=True)
        kubelet.pods = [pod("a", cpus=[0]), pod("b", cpus=[1])]
        async with serving(kubelet, socket):
            await observed.reach(2)
            kubelet.error = grpc.StatusCode.RESOURCE_EXHAUSTED
            await kubelet.asked(2)
            assert not running.health.ready
            kubelet.error = None
            kubelet.pods = [pod("b", cpus=[2, 3])]
            await observed.reach(3)
            assert running.health.ready
        lines = running.lines("kubelet cannot be asked")
        assert any("n1/kubelet.sock: RESOURCE_EXHAUSTED: as the test wants it" in line for line in lines)


async def test_an_ingest_that_restarts_gets_what_happened_meanwhile(
    exporting: Exporting, kubelet: Kubelet, facts: Facts, observed: Observations, log: PostgresLog
) -> None:
    await facts.append(seen("a"), seen("b"))
    kubelet.pods = [pod("a", cpus=[0])]
    async with AsyncExitStack() as stack:
        async with running_ingest(log, exporting.cluster) as first:
            exporting.url = first.url
            running = await stack.enter_async_context(exporting("n1"))
            await observed.reach(1)
        kubelet.pods = [pod("a", cpus=[4]), pod("b", cpus=[0])]
        while not running.counted("reports_total", result="failed"):
            await kubelet.asked()
        assert not running.health.ready
        line = running.lines("ingest does not take reports")[-1]
        assert line.startswith(f"{first.url}/v1/clusters/{exporting.cluster}/nodes/n1/placements: ")
        port = int(first.url.rpartition(":")[2])
        await stack.enter_async_context(running_ingest(log, exporting.cluster, port=port))
        await observed.reach(3)
        while not running.health.ready:
            await kubelet.asked()
    assert sorted((await observed.summary())[1:]) == ["a node-1:cpu=1000", "b node-0:cpu=1000"]


async def test_reports_go_to_the_next_ingest_when_one_dies_and_nothing_is_recorded_twice(
    postgres_log: PostgresLog, exporting: Exporting, kubelet: Kubelet, facts: Facts, observed: Observations
) -> None:
    await facts.append(seen("a"), seen("b"))
    kubelet.pods = [pod("a", cpus=[4])]
    async with AsyncExitStack() as first_life, running_ingest(postgres_log, exporting.cluster) as second:
        first = await first_life.enter_async_context(running_ingest(postgres_log, exporting.cluster))
        exporting.url = f"{first.url},{second.url}"
        # The second one gets all reports of the first one, and more.
        async with exporting("n1", drift_s=0.1) as running:
            await observed.reach(1)
            await first_life.aclose()
            kubelet.pods = [pod("a", cpus=[4]), pod("b", cpus=[0])]
            await observed.reach(2)
            assert running.health.ready
    assert await observed.summary() == ["a node-1:cpu=1000", "b node-0:cpu=1000"]
    assert second.counted("observations_total", source="exporter") == 1
