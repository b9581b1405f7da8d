"""Two operators as processes, each with nothing but the rights of operator.yaml."""

import json
import os
import signal
import subprocess
from pathlib import Path

import yaml
from kai_operator.main import KubeLeaseStore
from kaicore.kube.api.client import KubeClient
from kaicore.ledger.bus.leases import Lease
from kaicore.yaml_text import load_yaml_all

from tests.e2e.rights import rights_of
from tests.given.processes.kai_commands import Spawned, spawned
from tests.integration.operator.conftest import CONFIGS, MANIFEST, NAMESPACE, SHARDS, Site, documents

LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/kai-operator"
BUDGET = "PodDisruptionBudget"
USER = f"system:serviceaccount:{NAMESPACE}:kai-operator"


async def start(site: Site, root: Path, *arguments: str) -> Spawned:
    kubeconfig = root / "kubeconfig"
    cluster = {"name": "one", "cluster": {"server": site.api.server.http_url}}
    context = {"name": "one", "context": {"cluster": "one", "user": "operator"}}
    user = {"name": "operator", "user": {"token": site.token}}
    document = {"clusters": [cluster], "contexts": [context], "users": [user], "current-context": "one"}
    kubeconfig.write_text(yaml.safe_dump(document))
    return await spawned(
        *("kai_operator.main", "--kubeconfig", str(kubeconfig), "--lease-ms", "1500"),
        *("--pod-name", "kai-operator-0", *arguments),
        environment={**os.environ, "KAI_PARENT_PID": str(os.getpid())},
        stderr=subprocess.PIPE,
    )


async def holder(site: Site) -> str:
    if await site.gone(LEASE):
        return ""
    return str((await site.api.get(LEASE))["spec"]["holderIdentity"])


async def test_a_second_operator_takes_over_from_one_that_was_killed_and_every_right_is_used(
    site: Site, tmp_path: Path
) -> None:
    api = site.api
    container = {"name": "operator", "image": "registry/kai@sha256:1"}
    pod = {"metadata": {"name": "kai-operator-0"}, "spec": {"containers": [container]}}
    await api.post(f"/api/v1/namespaces/{NAMESPACE}/pods", pod)
    first = await start(site, tmp_path)
    leader = await site.until(lambda: holder(site), bool)
    # As after an upgrade to values without disruption budgets.
    for name in ("exporter", "scheduler"):
        kept = [one for one in load_yaml_all((MANIFEST.parent / f"{name}.yaml").read_text()) if one["kind"] != BUDGET]
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump_all(kept))
    second = await start(site, tmp_path, "--templates-dir", str(tmp_path))
    try:
        await site.config()
        await site.shard("red", plugins={"numa": {"enabled": True}}, replicaMode="Shared")
        kinds = ("ConfigMap", BUDGET, "Service", "ServiceAccount", "StatefulSet")
        red = {f"{kind} kai-scheduler-red" for kind in kinds}
        exporter = {"ServiceAccount kai-exporter", "DaemonSet kai-exporter"}
        await site.until_operands(*red, *exporter)
        made = await api.get(site.path("StatefulSet", "kai-scheduler-red"))
        assert made["spec"]["template"]["spec"]["containers"][0]["image"] == container["image"]

        first.kill()
        await api.merge(CONFIGS + "/kai-config", {"spec": {"numaPlacementExporter": {"service": {"enabled": False}}}})
        for mode, kind in (("Standby", "Deployment"), ("Shared", "StatefulSet")):
            await api.merge(f"{SHARDS}/red", {"spec": {"replicaMode": mode}})
            await site.until(site.operands, lambda operands, kind=kind: f"{kind} kai-scheduler-red" in operands)
        await site.until_operands(*red - {f"{BUDGET} kai-scheduler-red"})
        assert await site.until(lambda: holder(site), lambda other: other not in ("", leader))
        await api.merge(f"{SHARDS}/red", {"spec": {"settings": {"repair": 3}}})
        await site.until_condition(f"{SHARDS}/red", "Degraded", "True", "InvalidSpec")

        counted = await api.get("/simulator/rights")
        assert [refusal for refusal in counted["refused"] if refusal["user"] == USER] == []
        used = {(use["group"], use["resource"], use["verb"]) for use in counted["allowed"] if use["user"] == USER}
        granted = {
            (right.group, right.resource, right.verb)
            for document in documents()
            if document["kind"] in ("Role", "ClusterRole")
            for right in rights_of(USER, document["rules"])
        }
        assert granted - used == set()

        second.send_signal(signal.SIGTERM)
        assert second.stderr is not None
        output = await second.stderr.read()
        await second.wait()
        assert (second.returncode, b"Traceback" in output) == (0, False), output.decode()
        assert await holder(site) == "", "the next one need not wait"
    finally:
        for process in (first, second):
            if process.returncode is None:
                process.kill()
            await process.wait()


async def test_a_lease_on_the_api_server_is_held_by_one_and_can_be_taken_over(site: Site) -> None:
    times = {"first": 0.0, "second": 0.0}
    async with KubeClient(site.access) as client:
        store = KubeLeaseStore(client, NAMESPACE)
        first, second = (
            Lease(store, "kai", "operator", owner=owner, duration_s=10, clock=lambda owner=owner: times[owner])  # type: ignore[misc]
            for owner in times
        )
        assert [await first.hold(), await second.hold(), await first.hold()] == [True, False, True]
        times["second"] = 9.0
        assert not await second.hold()
        times["second"] = 21.0
        assert await second.hold()
        assert not await first.hold(), "its renewal is refused"
        assert second.token > first.token
        await second.release()
        assert await first.hold()
    assert json.loads((await site.api.get(LEASE))["metadata"]["annotations"]["kai.scheduler/lease"])["owner"] == "first"
