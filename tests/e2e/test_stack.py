"""The whole stack as an operator runs it: `kai up`, pods, questions, Ctrl-C, and `kai up` again."""

from collections.abc import Iterator

import pytest
from kaicore.state.pod_entry import Stage

from tests.e2e.live_stack import LiveStack, bound, finished, ours, pod_manifest
from tests.servers import scratch_directory

pytestmark = pytest.mark.slow


@pytest.fixture
def stack() -> Iterator[LiveStack]:
    with scratch_directory() as root:
        live = LiveStack(root)
        live.start()
        yield live
        if live.alive:
            live.interrupt()


async def test_pods_run_are_observed_explained_and_replayed_and_all_of_it_is_kept(stack: LiveStack) -> None:
    fitting = [pod_manifest(f"fits-{number}", seconds=1, cpu="4", memory="4Gi", gpu="1") for number in range(12)]
    staying = [pod_manifest(f"stays-{number}", cpu="2", memory="2Gi") for number in range(3)]
    await stack.create(*fitting, *staying, pod_manifest("never", cpu="1", memory="1Gi", gpu="99"))
    state = await stack.until(
        lambda state: (
            finished(12, "fits")(state)
            and sum(entry.pod.phase == "Running" for entry in ours(state, "stays")) == 3
            and sum(state.tally.agreement.values()) >= 3
            and bool(state.reasons)
        )
    )
    assert state.tally.rejections == {}
    assert set(state.tally.agreement) <= {"exact", "same-zones"}
    for name in ("fits-0", "stays-0"):
        story = [line["text"] for line in stack.ask("why", f"default/{name}")["story"]]
        assert any("placed it on" in line for line in story)
        assert any(line.startswith("bound to") for line in story)
    never = stack.ask("why", "default/never")
    assert never["verdict"] == "pending"
    assert any("nvidia.com/gpu" in reason["message"] for reason in never["reasons"])
    await stack.check()
    assert stack.ask("replay")[0]["differences"] == []
    assert stack.ask("audit", "verify")[0]["ok"]

    position = state.position
    assert stack.interrupt() == 0
    assert stack.directory.running() is None
    assert stack.ask("why", "default/stays-0")["verdict"].startswith("running on"), "the log answers without the stack"

    stack.start()
    await stack.create(pod_manifest("later", seconds=1, cpu="2", memory="2Gi", gpu="1"))
    state = await stack.until(finished(1, "later"))
    assert state.position > position
    stays = ours(state, "stays")
    assert [entry.stage for entry in stays] == [Stage.BOUND] * 3
    assert {entry.pod.phase for entry in stays} == {"Running"}, "the kubelets kept them running"
    assert state.tally.bound == 16
    await stack.check()


async def test_a_supervisor_that_is_killed_takes_all_with_it_and_the_next_goes_on(stack: LiveStack) -> None:
    await stack.create(*(pod_manifest(f"a-{number}", cpu="1", memory="1Gi") for number in range(5)))
    await stack.until(bound(5, "a"))
    stack.kill()
    stack.start()
    await stack.create(*(pod_manifest(f"b-{number}", cpu="1", memory="1Gi") for number in range(5)))
    state = await stack.until(lambda state: bound(5, "b")(state) and state.tally.bound >= 10)
    assert state.tally.bound == 10
    await stack.check()
