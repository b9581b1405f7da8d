"""The whole stack as an operator runs it: `kai up`, pods, questions, Ctrl-C, and `kai up` again.

On an API server of its own with `--kubeconfig`, each service with its own account. On the simulated cluster that
`kai up` brings itself: `test_own_cluster.py`."""

import asyncio
from collections.abc import Iterator

import msgspec
import pytest
from kaicore.rules.state.pods.agreement import NO_FAULT
from kaicore.rules.state.pods.pod_entry import PodEntry, Stage

from tests.e2e.cluster import PATIENCE_S, Cluster, real_nodes
from tests.e2e.live_stack import (
    NEVER,
    LiveStack,
    alone,
    bound,
    finished,
    miss_causes,
    ours,
    pod_manifest,
    running,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def stack(cluster: Cluster) -> Iterator[LiveStack]:
    live = LiveStack(cluster.root / "kai", cluster)
    with running(live):
        yield live


def observed_with_init_containers(entry: PodEntry) -> bool:
    """True if the kubelet's state files showed the remains of the pod's init container."""
    return entry.observed is not None and entry.observed.init == ("first",)


async def shown(stack: LiveStack, name: str) -> dict[str, str]:
    """By reason, the messages of a pod's condition PodScheduled while it waits and of the events about it."""
    where = f"/api/v1/namespaces/{stack.namespace}"
    async with stack.client() as client:
        pod = msgspec.json.decode(await client.get(f"{where}/pods/{name}"))
        events = msgspec.json.decode(await client.get(f"{where}/events"))["items"]
    messages = {one["reason"]: str(one["message"]) for one in events if one["involvedObject"]["name"] == name}
    waits = {"type": "PodScheduled", "status": "False"}
    conditions = [one for one in pod["status"].get("conditions", ()) if one.items() >= waits.items()]
    return messages | {one["reason"]: str(one["message"]) for one in conditions}


async def until_told(stack: LiveStack, name: str, reason: str) -> str:
    """Wait until a pod is shown with a reason; returns the message."""
    async with asyncio.timeout(PATIENCE_S):
        while reason not in (seen := await shown(stack, name)):  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    return seen[reason]


_DATABASE_ROLES = {
    "kai-up": "kai_append",
    "kai-api": "kai_read",
    "kai-api sessions": "kai_read",
    "kai-relay": "kai_read",
    "kai-projector": "kai_project",
    **{f"kai-{service}": f"kai_{service}" for service in ("binder", "ingest", "scheduler", "watcher")},
}


async def test_pods_run_are_observed_explained_and_replayed_and_all_of_it_is_kept(stack: LiveStack) -> None:
    fitting = [pod_manifest(f"fits-{number}", seconds=1, cpu="4", memory="4Gi", gpu="1") for number in range(12)]
    staying = [pod_manifest(f"stays-{number}", cpu="2", memory="2Gi") for number in range(3)]
    for pod in staying:
        (container,) = pod["spec"]["containers"]
        pod["spec"]["initContainers"] = [{**container, "name": "first", "command": ["true"]}]
    await stack.create(*fitting, *staying, pod_manifest("never", cpu="1", memory="1Gi", gpu=NEVER))
    state = await stack.until(
        lambda state: (
            finished(12, "fits")(state)
            and sum(entry.pod.phase == "Running" for entry in ours(state, "stays")) == 3
            and (real_nodes() or all(observed_with_init_containers(entry) for entry in ours(state, "stays")))
            and bool(state.reasons.by_class)
            and not state.misses.open
        )
    )
    assert state.counters.rejections == {}
    assert miss_causes(state) <= NO_FAULT
    for name in ("fits-0", "stays-0"):
        story = [line["text"] for line in stack.ask("why", f"{stack.namespace}/{name}")["story"]]
        assert any("placed it on" in line for line in story)
        assert any(line.startswith("bound to") for line in story)
    never = stack.ask("why", f"{stack.namespace}/never")
    assert never["verdict"] == "pending"
    assert any("nvidia.com/gpu" in reason["message"] for reason in never["reasons"])
    for reason in ("Unschedulable", "FailedScheduling"):
        assert "nvidia.com/gpu" in await until_told(stack, "never", reason)
    assert "log position" in await until_told(stack, "stays-0", "Scheduled")
    assert len(stack.secrets()) >= 4
    assert stack.leaks() + await stack.leaks_in_cluster() == []
    # `kai up` keeps no connection that it does not use.
    assert _DATABASE_ROLES | stack.database_roles() == _DATABASE_ROLES
    assert {"kai-up": "kai_append"} | stack.database_roles() == _DATABASE_ROLES

    position = state.position
    assert stack.interrupt() == 0
    assert stack.directory.running() is None
    assert stack.ask("why", f"{stack.namespace}/stays-0")["verdict"].startswith("running on"), (
        "the log answers without the stack"
    )

    stack.start()
    await stack.create(pod_manifest("later", seconds=1, cpu="2", memory="2Gi", gpu="1"))
    state = await stack.until(finished(1, "later"))
    assert state.position > position
    stays = ours(state, "stays")
    assert [entry.stage for entry in stays] == [Stage.BOUND] * 3
    assert {entry.pod.phase for entry in stays} == {"Running"}, "the kubelets kept them running"
    assert state.counters.bound == 16

    await _goes_on_though_services_are_killed(stack)
    await stack.check()
    _replayed_from_the_file_alone(stack)


async def _goes_on_though_services_are_killed(stack: LiveStack) -> None:
    for service in ("kai_scheduler.main", "kai_binder.main", "kai_watcher.main", "kai_relay.main"):
        stack.kill_service(service)
        name = service.partition(".")[0].replace("_", "-")
        await stack.create(pod_manifest(f"despite-{name}", cpu="1", memory="1Gi"))
    await stack.until(bound(4, "despite"))


def _replayed_from_the_file_alone(stack: LiveStack) -> None:
    """Export the whole log, and verify and replay it in processes that know of nothing but the file."""
    exported = stack.directory.root / "e2e.log.gz"
    last = stack.ask("export", str(exported))["last"]
    there = ("--file", str(exported))
    replayed = alone("replay", *there)
    assert (replayed["differences"], replayed["position"]) == ([], last["position"])
    assert replayed["cycles"] > 0
    audit = alone("audit", "verify", *there)
    assert (audit["ok"], audit["head"]["hash"]) == (True, last["hash"])
    verdict = alone("why", f"{stack.namespace}/stays-0", *there)["verdict"]
    assert verdict == stack.ask("why", f"{stack.namespace}/stays-0")["verdict"]
