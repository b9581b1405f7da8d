"""`kai up` on the cluster that it brings itself: what it prints works, first tries end well, nothing is lost.

One stack for all tests, in their order: the last one kills it, and starts it again with services that share processes.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kai_cli.sources.paths import try_lock
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.pods.pod_entry import Stage

from tests.e2e.live_stack import PATIENCE_S, LiveStack, bound, finished, ours, own_stack_for_module, pod_manifest
from tests.given.processes.kai_commands import kai, put_on_path

pytestmark = pytest.mark.slow

PROFILE = """
groups:
  - name: gpu
    count: 1
    taints: [{key: nvidia.com/gpu, value: present, effect: NoSchedule}]
    zones: 2
    perZone: {cpus: 8, memory: 32Gi, devices: {nvidia.com/gpu: 2}}
    kubelet: {topologyManagerPolicy: single-numa-node, cpuManagerPolicy: static, kubeReserved: {cpu: "1"}}
  - name: cpu
    count: 1
    zones: 1
    perZone: {cpus: 8, memory: 32Gi}
    kubelet: {kubeReserved: {cpu: "1"}}
"""


stack = own_stack_for_module(PROFILE, "with a blank")


def processes() -> str:
    """All processes, and what each waits for in the kernel."""
    listed = subprocess.run(["ps", "-eo", "pid,ppid,stat,wchan,args"], capture_output=True, text=True, check=True)
    return listed.stdout


def paste(command: str, programs: Path) -> subprocess.CompletedProcess[str]:
    """Run a printed command in a shell of its own, from elsewhere; its `kai` is that of a folder."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KAI_")}
    program = Path(sys.executable).with_name("kai")
    assert program.exists()
    assert command.startswith(f"{program} ")
    command = command.replace(str(program), str(programs / "kai"))
    return subprocess.run(
        command, shell=True, cwd="/", env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )


async def test_the_commands_that_are_printed_work_as_printed_and_lists_status_and_logs_tell(
    stack: LiveStack, tmp_path: Path
) -> None:
    await stack.create(pod_manifest("runs", cpu="2", memory="2Gi"), pod_manifest("never", cpu="1", gpu="99"))
    await stack.until(lambda state: bound(1, "runs")(state) and bool(state.reasons.by_class))

    assert any(line.startswith("dashboard and API at http://127.0.0.1:") for line in stack.said)
    assert "/login#" not in "\n".join(stack.said), "what is printed to no terminal is kept"
    (kubectl,) = [line for line in stack.said if "kubectl --kubeconfig" in line]
    assert str(stack.cluster.kubeconfig) in kubectl
    hints = [line.strip() for line in stack.said[stack.said.index("try:") :] if line.startswith("  ")]
    assert len(hints) >= 6
    put_on_path(tmp_path)
    for hint in hints:
        done = paste(hint.replace(" --follow", ""), tmp_path)
        assert done.returncode == 0, (hint, done.stdout, done.stderr)
        assert done.stdout.strip(), hint

    status = stack.ask("status")
    assert status["ready"]
    services = {service["name"]: service for service in status["services"]}
    assert services.keys() >= {"postgres", "nats", "relay", "api", "e2e-scheduler", "e2e-watcher", "e2e-binder"}
    assert "e2e" in services["e2e-scheduler"]["lag"]
    assert status["clusters"][0]["position"] > 0

    assert [row["name"] for row in stack.ask("get", "pods", "--pending")["items"]] == ["never"]
    assert stack.ask("get", "pods", "runs")["items"][0]["node"]
    assert stack.ask("logs", "relay", "--tail", "1")["service"] == "relay"

    manifests = stack.directory.root.parent / "asked.json"
    manifests.write_text(json.dumps(pod_manifest("asked", cpu="1", gpu="1")))
    asked = stack.ask("what-if", "submit", str(manifests))["groups"][0]
    assert asked["verdict"] == "StartsNow"
    await stack.create(pod_manifest("asked", cpu="1", gpu="1"))
    await stack.until(bound(1, "asked"))
    assert stack.ask("get", "pods", "asked")["items"][0]["node"] == asked["pods"][0]["node"]

    stack.kill_service("kai_api.main")
    assert stack.ask("why", "never")["verdict"] == "pending", "while the API is away, the log itself answers"


async def test_plain_pods_and_deployments_run_and_gpu_pods_do_in_the_playground(stack: LiveStack) -> None:
    plain = {"containers": [{"name": "hello", "image": "busybox"}]}
    labels = {"labels": {"app": "web"}}
    selector = {"matchLabels": {"app": "web"}}
    gpu = pod_manifest("gpu", seconds=1, cpu="1", memory="1Gi", gpu="1")
    del gpu["spec"]["tolerations"]
    gpu["metadata"]["namespace"] = "playground"
    await stack.create(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "hello"}, "spec": plain},
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "web"},
            "spec": {
                "replicas": 2,
                "selector": selector,
                "template": {"metadata": labels, "spec": {**plain, "schedulerName": "kai-ledger"}},
            },
        },
        gpu,
    )
    running_there = lambda item: item["metadata"]["name"] == "hello" and item["status"]["phase"] == "Running"  # noqa: E731
    await stack.seen("/api/v1/namespaces/default/pods", running_there)
    available = lambda item: item["status"].get("availableReplicas") == 2  # noqa: E731
    await stack.seen("/apis/apps/v1/namespaces/default/deployments", available)
    state = await stack.until(finished(1, "gpu"))
    assert state.counters.rejections == {}


def test_a_second_kai_on_a_directory_in_use_is_refused_and_the_first_loses_nothing(stack: LiveStack) -> None:
    root = str(stack.directory.root)
    recorded = stack.directory.running_file.read_bytes()
    for second in (("up",), ("demo",), ("demo", "--fresh"), ("demo", "--once")):
        done = kai(*second, "--data-dir", root)
        assert done.returncode == 2, done.stdout + done.stderr
        assert f"process {json.loads(recorded)['pid']}" in done.stderr
        assert stack.directory.running_file.read_bytes() == recorded
    assert (stack.directory.postgres / "data" / "PG_VERSION").exists()
    assert stack.ask("audit", "verify")["ok"]


def all_told(state: ClusterState) -> bool:
    """The binder has written an event for each pod that has come to a node."""
    return state.counters.bound >= sum(entry.stage in (Stage.BOUND, Stage.FINISHED) for entry in ours(state))


async def test_after_kill_minus_9_the_directory_is_free_when_all_processes_are_gone_and_the_next_start_goes_on(
    stack: LiveStack,
) -> None:
    await stack.create(*(pod_manifest(f"a-{number}", cpu="1", memory="1Gi") for number in range(5)))
    before = await stack.until(lambda state: bound(5, "a-")(state) and all_told(state))
    fleet = stack.pid_of("kai_fleet.main")
    os.kill(fleet, signal.SIGSTOP)
    try:
        stack.kill()
        assert stack.directory.running() is None
        assert try_lock(stack.directory.root) is None, "a process of the killed stack still lives"
    finally:
        os.kill(fleet, signal.SIGCONT)
    deadline = time.monotonic() + PATIENCE_S
    while (held := try_lock(stack.directory.root)) is None:
        assert time.monotonic() < deadline, processes()
        time.sleep(0.1)  # noqa: ASYNC251
    held.release()
    assert stack.ask("audit", "verify")["ok"], "the log outlived it"

    # The bus is lost, too, and filled from the log.
    shutil.rmtree(stack.directory.nats)
    stack.start("--compact")
    assert stack.database_roles().items() >= {"kai-relay": "kai_read", "kai-watcher": "kai_watcher"}.items()
    stack.kill_service("kai_services")
    await stack.create(*(pod_manifest(f"b-{number}", cpu="1", memory="1Gi") for number in range(5)))
    state = await stack.until(lambda state: bound(5, "b-")(state) and all_told(state))
    assert state.counters.bound == before.counters.bound + 5
    assert stack.ask("logs", "scheduler", "--tail", "1")["service"] == "scheduler"
    await stack.check()
