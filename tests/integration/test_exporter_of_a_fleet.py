"""Simulated kubelets, the exporter that serves them all, and ingest: what a kubelet gave a pod ends up in the log."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kai_apiserver.server import ApiServer, ApiServerOptions
from kai_exporter.main import ExporterSettings, export
from kaicore.kube.normalize.pod import normalize_pod
from kaicore.kube.wire.resources import PODS
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.events import payloads
from kaicore.rules.model.placement import Placement, Provenance, SpanAmount, ZoneAmount
from kaicore.rules.model.pod import Pod
from kaicore.runtime.agent.process import AgentContext, AgentLog
from kaicore.runtime.process_context import Health

from tests.given.cluster.factory import GI
from tests.given.processes.ingest_service import SECRET, Facts, Observations, RunningIngest
from tests.given.processes.service_process import service_process
from tests.given.processes.waiting import until_payloads
from tests.integration.ingest.conftest import ingest, log
from tests.tools.fleet.cluster import Cluster
from tests.tools.fleet.objects import GROUP, NO_LAG

__all__ = ["ingest", "log"]

PROFILE = "groups:" + GROUP.format(
    count=3, policy="restricted", scope="container", publisher="rte", delay="20ms", period="0", timing="", lag=NO_LAG
)


@pytest.fixture
async def exporting(
    ingest: RunningIngest, cluster_name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Path]:
    """An exporter of all kubelets below a directory, as its process runs it; yields the directory.

    What happens is seen by the kubelets' state files, or not before the test has given up; a parameter is how often
    everything is reported again.
    """
    secret, sockets = tmp_path / "secret", tmp_path / "pr"
    secret.write_bytes(SECRET)
    settings = ExporterSettings(
        cluster=cluster_name,
        ingest_url=ingest.url,
        podresources_dir=sockets,
        node_token_secret_file=secret,
        poll_interval_s=0.05,
        quiet_interval_s=3600,
        drift_interval_s=getattr(request, "param", 3600),
    )
    context = AgentContext("exporter", Health("kubelet", "ingest"), AgentLog("exporter"))
    task = asyncio.ensure_future(export(context, settings))
    try:
        yield sockets
    finally:
        context.stopping.set()
        with suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def _fleet(sockets: Path, directory: Path) -> AsyncIterator[Cluster]:
    (directory / "profile.yaml").write_text(PROFILE)
    arguments = {
        "--kubeconfig": directory / "kubeconfig",
        "--profile": directory / "profile.yaml",
        "--data-dir": directory / "data",
        "--podresources-dir": sockets,
    }
    flags = [str(part) for flag in arguments.items() for part in flag]
    async with (
        ApiServer(ApiServerOptions(controllers=False)) as server,
        Cluster(server.http_url, server.admin_token) as cluster,
    ):
        server.write_http_kubeconfig(directory / "kubeconfig")
        async with service_process("kai_fleet.main", {}, "--install-crds", *flags):
            yield cluster


async def _run(cluster: Cluster, facts: Facts, name: str, **spec: Any) -> Pod:
    """Run a pod, which the watcher sees."""
    made = await cluster.run_pod(name, **spec)
    one = normalize_pod(PODS.decode(json.dumps(made).encode()))
    await facts.append((f"pod/{one.uid}", payloads.PodObserved(one)))
    return one


async def test_a_fleet_is_observed(log: PostgresLog, cluster_name: str, exporting: Path, tmp_path: Path) -> None:
    facts, observed = Facts(log, cluster_name), Observations(log, cluster_name)
    narrow = {"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": "2"}
    wide = {"cpu": "10", "memory": "40Gi", "nvidia.com/gpu": "5"}
    async with _fleet(exporting, tmp_path) as cluster:
        for node, requests in enumerate((narrow, narrow, wide)):
            await _run(cluster, facts, f"p{node}", node=f"node-{node}", amounts=requests)
        placements = {payload.name: payload.placement for payload in await observed.reach(3)}
    for name in ("p0", "p1"):
        assert placements[name].zone_amounts() == (
            ZoneAmount("node-0", {"cpu": 2000, "memory": GI, "nvidia.com/gpu": 2}),
        )
    (container,) = placements["p2"].containers
    assert [zone.zone for zone in container.zones] == ["node-0", "node-1"]
    assert sum(zone.amount["cpu"] for zone in container.zones) == 10_000
    assert sum(zone.amount["nvidia.com/gpu"] for zone in container.zones) == 5
    assert container.spans == (SpanAmount(("node-0", "node-1"), {"memory": 40 * GI}),)


@pytest.mark.parametrize("exporting", [1], indirect=True)
async def test_a_log_that_has_not_what_a_kubelet_says_is_found_by_the_next_report_of_everything_and_mended(
    log: PostgresLog, cluster_name: str, exporting: Path, tmp_path: Path
) -> None:
    facts, observed = Facts(log, cluster_name), Observations(log, cluster_name)
    async with _fleet(exporting, tmp_path) as cluster:
        one = await _run(cluster, facts, "p", amounts={"cpu": "2", "memory": "1Gi"})
        (right,) = await observed.reach(1)
        assert right.placement.containers
        spoilt = msgspec.structs.replace(right, placement=Placement(Provenance.OBSERVED, ()))
        await facts.append((f"pod/{one.uid}", spoilt))
        seen = [payload.placement for payload in await observed.reach(3)]
        # The finding is appended after what mends it.
        (found,) = await until_payloads(log, cluster_name, "DifferenceFound")
    assert [placement.containers for placement in seen] == [right.placement.containers, (), right.placement.containers]
    assert isinstance(found, payloads.DifferenceFound)
    assert (found.check, found.parts) == ("exporter", ("Pod default/p",))


async def test_init_containers_are_observed_by_the_kubelets_state_files(
    log: PostgresLog, cluster_name: str, exporting: Path, tmp_path: Path
) -> None:
    facts, observed = Facts(log, cluster_name), Observations(log, cluster_name)
    async with _fleet(exporting, tmp_path) as cluster:
        held = {"cpu": "3", "memory": "1Gi"}
        setup = {"name": "setup", "image": "pause", "resources": {"requests": held, "limits": held}}
        one = await _run(cluster, facts, "p", amounts={"cpu": "1", "memory": "2Gi"}, initContainers=[setup])
        payload = (await observed.reach(1))[-1]
    assert (payload.uid, payload.placement.init) == (one.uid, ("setup",))
    main, kept = payload.placement.containers
    assert main.zones == (ZoneAmount("node-0", {"cpu": 1000, "memory": 2 * GI}),)
    assert [(zone.zone, zone.amount["cpu"]) for zone in kept.zones] == [("node-0", 2000)]
