"""The tutorial of policies, from an empty folder to a live policy and back: each command of the page, in its order.

Helm's line needs a release on a real API server (`tests/e2e/test_helm.py`); here the chart is rendered with its values.
"""

import asyncio
import json
import re
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kaicore.rules.groups.labels import KAI_QUEUE_LABEL
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.runtime.shard_settings import read_shard_settings
from kaicore.yaml_text import load_yaml

from scripts import chart
from tests.e2e.cluster import PATIENCE_S, answers
from tests.e2e.live_stack import LiveStack, bound, pod_manifest, running
from tests.e2e.test_documented_commands import GOES_ON, Shell, is_mention
from tests.given.cluster.fleets import fleet, nodes
from tests.given.processes.kai_commands import spawned
from tests.given.servers.ports import free_port
from tests.given.servers.servers import scratch_directory
from tests.integration.test_shadowing import recorded

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PAGE = (Path(__file__).parents[2] / "docs/how-to/write-a-policy.md").read_text()
#: A small spot node, which is packed first, and a large one that stays.
TWO_NODES = fleet(
    nodes(1, 1, name="spot", gpus=4, also='labels: {cloud.example/spot: "true"}'),
    nodes(1, 2, name="stays", cpus=32, memory="128Gi", gpus=8),
)


def block(language: str) -> str:
    return PAGE.partition(f"```{language}\n")[2].partition("```")[0]


def commands() -> list[str]:
    """The lines of the steps in their order, and after them those at the head of the page, which sum them up."""
    head, first, steps = PAGE.partition("## 1.")
    found = re.findall(r"^(kai .*|helm (?:.*\\\n)*.*)$|`(kai [^`]*)`", first + steps + head, re.MULTILINE)
    lines = [re.split(r"\s+#", (fenced or inline).replace("\\\n", ""))[0] for fenced, inline in found]
    return [line for line in lines if line.startswith("helm ") or not (line in GOES_ON or is_mention(line))]


class Tutorial(Shell):
    """A folder in which the commands of the page are run, each when its turn has come."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.left = commands()

    def next(self, begins: str) -> str:
        """Run the next command, which begins so; what it prints."""
        line = self.left.pop(0)
        assert line.startswith(begins)
        return self.prints(line)

    def prints(self, line: str) -> str:
        done = self.run(line)
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        return done.stdout


def rendered(line: str, folder: Path) -> dict[str, Any]:
    """The settings of the scheduler that the chart makes of the values of Helm's line, with its files in a folder."""
    words = shlex.split(line)
    assert words[:3] == ["helm", "upgrade", "kai"]
    assert (Path(__file__).parents[2] / words[3] / "Chart.yaml").exists()
    assert words[words.index("-f") + 1] == "live-values.yaml"
    key, _, file = words[words.index("--set-file") + 1].partition("=")
    (given,) = re.findall(r"^`live-values.yaml`: `(.*)`$", PAGE, re.MULTILINE)
    *path, name = [part.replace("\\.", ".") for part in re.split(r"(?<!\\)\.", key)]
    values = load_yaml(given)
    place = values
    for part in path:
        place = place.setdefault(part, {})
    place[name] = (folder / file).read_text()
    objects = {(one["kind"], one["metadata"]["name"]): one for one in chart.objects(values)}
    made = folder / "chart"
    made.mkdir()
    for name, text in objects["ConfigMap", "kai-policies"]["data"].items():
        (made / name).write_text(text)
    settings = objects["ConfigMap", "kai-scheduler"]["data"]["scheduler.yaml"].replace("/etc/kai/policies", str(made))
    (made / "scheduler.yaml").write_text(settings)
    return {one.name: one for one in read_shard_settings(made / "scheduler.yaml").policies}


@asynccontextmanager
async def shadow(stack: LiveStack, shell: Shell) -> AsyncIterator[None]:
    """One more `kai-scheduler`, with the settings and the variable that the page says."""
    (variable,) = re.findall(r"^With `(KAI_SHADOW=\S+)` it", PAGE, re.MULTILINE)
    port = free_port()
    environment = shell.environment | {
        "KAI_DATABASE_URL": stack.running.database_url,
        "KAI_NATS_URL": stack.running.nats_url,
        "KAI_CLUSTER": "e2e",
        "KAI_HTTP_PORT": str(port),
        # As `kai up` has it where there is one: another one is not waited for.
        "KAI_LEASE_MS": "0",
        "KAI_STANDBY_MS": "0",
        "KAI_SCHEDULER_CONFIG": str(shell.here / "trial.yaml"),
        **dict([variable.split("=")]),
    }
    process = await spawned("kai_scheduler.main", environment=environment)
    try:
        # What was decided before it begins is not decided on.
        async with asyncio.timeout(PATIENCE_S):
            while not await asyncio.to_thread(answers, f"http://127.0.0.1:{port}/readyz"):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        yield
        assert process.returncode is None
    finally:
        process.kill()
        await process.wait()


async def comes(stack: LiveStack, name: str, queue: str = "") -> None:
    one = pod_manifest(name, cpu="1", memory="1Gi", gpu="1")
    one["metadata"]["labels"] = {KAI_QUEUE_LABEL: queue} if queue else {}
    await stack.create(one)


def nodes_of(state: ClusterState) -> dict[str, str]:
    return {one.pod.name: one.node for one in state.pods.values()}


async def test_page_leads_from_an_empty_folder_to_a_live_policy_and_back() -> None:
    with scratch_directory() as here:
        shell = Tutorial(here)
        (here / "fleet.yaml").write_text(TWO_NODES)
        with running(LiveStack(here / ".kai", profile=str(here / "fleet.yaml"))) as stack:
            await comes(stack, "before")
            assert nodes_of(await stack.until(bound(1))) == {"before": "spot-0"}
            (here / "spot_last.py").write_text(block("python"))
            shell.next("kai policy input ")
            assert [one["value"] for one in json.loads(shell.prints("kai policy input -o json"))] == [30]
            assert shell.next("kai policy check ").splitlines()[-1] == "all 6 properties hold"
            assert "weight=700, for research" in shell.next("kai policy try ")
            assert "reserve-and-move" in shell.next("kai policy try ")
            (here / "trial.yaml").write_text(block("yaml"))
            async with shadow(stack, shell):
                await comes(stack, "beside", "default")
                assert nodes_of(await stack.until(bound(2)))["beside"] == "spot-0"
                async with stack.log() as log:
                    (decided, *_) = await recorded(log, cluster="e2e")
                assert [(one.name, one.node) for one in decided.placed] == [("beside", "stays-0")]
            assert "1 other node" in shell.next("kai shadow report ")
        live = load_yaml(block("yaml"))["policies"]
        (here / "live.yaml").write_text(json.dumps({"policies": [{**live[0], "queues": []}]}))
        settings = ("--scheduler-config", str(here / "live.yaml"))
        with running(LiveStack(here / ".kai", profile=str(here / "fleet.yaml"), flags=settings)):
            await comes(stack, "live")
            assert nodes_of(await stack.until(bound(3)))["live"] == "stays-0"
            assert "policy spot-last: 700 against 0 on spot-0" in shell.prints("kai why default/live")
        with running(LiveStack(here / ".kai", profile=str(here / "fleet.yaml"))):
            await comes(stack, "after")
            assert nodes_of(await stack.until(bound(4)))["after"] == "spot-0"
            steps = shell.next("kai policy history").splitlines()[1:]
            assert ["spot-last 1" in step for step in steps] == [True, False]
            assert list(rendered(shell.left.pop(0), here)) == ["spot-last"]
            # The three lines at the head of the page.
            shell.next("kai policy check ")
            shell.next("kai policy try ")
            assert "<svg" in (here / "report.html").read_text()
            assert "spot-last 1" in shell.next("kai policy list ")
    assert shell.left == []
