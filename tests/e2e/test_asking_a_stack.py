"""What an operator is told when a stack is up, pasted back as it was printed; and the lists, status and logs of it."""

import json
import os
import subprocess
from collections.abc import Iterator

import pytest

from tests.e2e.live_stack import PATIENCE_S, LiveStack, bound, pod_manifest
from tests.servers import scratch_directory

pytestmark = pytest.mark.slow


@pytest.fixture
def stack() -> Iterator[LiveStack]:
    with scratch_directory() as root:
        live = LiveStack(root / "with a blank")
        live.start()
        yield live
        if live.alive:
            live.interrupt()


def paste(command: str) -> subprocess.CompletedProcess[str]:
    """Run a printed command in a shell of its own, from elsewhere."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KAI_")}
    return subprocess.run(
        command, shell=True, cwd="/", env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )


async def test_the_commands_that_are_printed_work_as_printed_and_lists_status_and_logs_tell(stack: LiveStack) -> None:
    await stack.create(pod_manifest("runs", cpu="2", memory="2Gi"), pod_manifest("never", cpu="1", gpu="99"))
    await stack.until(lambda state: bound(1, "runs")(state) and bool(state.reasons.by_class))

    assert any(line.startswith("dashboard and API at http://127.0.0.1:") for line in stack.said)
    assert "/login#" not in "\n".join(stack.said), "what is printed to no terminal is kept"
    (kubectl,) = [line for line in stack.said if "kubectl --kubeconfig" in line]
    assert str(stack.cluster.kubeconfig) in kubectl
    hints = [line.strip() for line in stack.said[stack.said.index("try:") :] if line.startswith("  ")]
    assert len(hints) >= 6
    for hint in hints:
        done = paste(hint.replace(" --follow", ""))
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
    output = stack.ask("logs", "relay", "--tail", "1")
    assert output["service"] == "relay"

    manifests = stack.directory.root.parent / "asked.json"
    manifests.write_text(json.dumps(pod_manifest("asked", cpu="1", gpu="1")))
    asked = stack.ask("what-if", "submit", str(manifests))["groups"][0]
    assert asked["verdict"] == "StartsNow"
    await stack.create(pod_manifest("asked", cpu="1", gpu="1"))
    await stack.until(bound(1, "asked"))
    assert stack.ask("get", "pods", "asked")["items"][0]["node"] == asked["pods"][0]["node"]

    stack.kill_service("kai_api.main")
    assert stack.ask("why", "never")["verdict"] == "pending", "while the API is away, the log itself answers"
