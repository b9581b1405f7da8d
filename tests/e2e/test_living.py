"""The demonstration lives: work of every kind that teams bring runs to its end as one gang, and it is never idle."""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from kai_cli.demonstration.demo import MOST_WAITING, Life, shared_by_teams, team_work
from kaicore.kube.api.discovery import ObjectPaths
from kaicore.ledger.log.port import Event, EventLog, Filter
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.pods.pod_entry import Stage

from tests.e2e.cluster import PATIENCE_S, Json
from tests.e2e.live_stack import LiveStack, ours, own_stack_for_module
from tests.given.cluster.fleets import aligned, fleet

pytestmark = pytest.mark.slow

#: 24 GPUs on three nodes, with kubelets that want each container in one zone.
THREE_NODES = fleet(aligned(3, cpus=64, memory="512Gi", also="labels: {nvidia.com/gpu.product: NVIDIA-A100-SXM4-40GB}"))


def condition(kind: str) -> Callable[[Json], bool]:
    return lambda shown: any(
        one["type"] == kind and one["status"] == "True" for one in shown.get("status", {}).get("conditions", ())
    )


def status(field: str, value: Any) -> Callable[[Json], bool]:
    return lambda shown: bool(shown.get("status", {}).get(field) == value)


@dataclass(frozen=True)
class Kind:
    """A kind of work.

    Attributes:
        name: of the manifest in the teams' folder.
        ends: what its status says in the end.
        gangs: how many of its pods start in one cycle, of each of its groups.
        goes: whether it runs until it is deleted.
    """

    name: str
    ends: Callable[[Json], bool]
    gangs: tuple[int, ...]
    goes: bool = False


KINDS = [
    Kind("pretrain", condition("Succeeded"), (4,)),
    Kind("segment", condition("Succeeded"), (5,)),
    Kind("rollout", condition("Completed"), (5,)),
    Kind("render", status("jobDeploymentStatus", "Complete"), (5,)),
    Kind("labels", lambda shown: shown.get("status", {}).get("state", {}).get("phase") == "Completed", (4,)),
    Kind("transcribe", status("state", "ready"), (4,), goes=True),
    Kind("chat", status("readyReplicas", 2), (2, 2), goes=True),
]


stack = own_stack_for_module(THREE_NODES, "data")


async def pods_of(stack: LiveStack, kind: str, prefix: str, *, count: int) -> list[Event]:
    """Return what the log has of a kind about pods with names that begin so, as soon as there is so much of it."""
    async with stack.log() as log, asyncio.timeout(PATIENCE_S):
        while True:
            head = await log.head("e2e")
            events = await log.read("e2e", after=0, where=Filter(types=(kind,)), limit=100_000)
            found = [event for event in events if event.subject.startswith(f"default/{prefix}")]
            if len(found) >= count:
                return found
            await log.wait_beyond("e2e", head.position, timeout_s=5)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
async def test_work_of_every_kind_runs_to_its_end_as_one_gang(stack: LiveStack, kind: Kind) -> None:
    (manifest,) = (one for team in team_work().values() for one in team if one["metadata"]["name"] == kind.name)
    shorter = msgspec.json.decode(msgspec.json.encode(manifest).replace(b'run-seconds":"40"', b'run-seconds":"2"'))
    await stack.create(*shared_by_teams(), shorter)
    async with stack.client() as client:
        paths = ObjectPaths(client)
        shown = await stack.seen(await paths.collection(shorter), lambda one: _is(one, kind.name) and kind.ends(one))
        placed = await pods_of(stack, "PodPlaced", f"{kind.name}-", count=sum(kind.gangs))
        if kind.goes:
            await client.delete(await paths.object(shorter))
            gone = await pods_of(stack, "PodDeleted", f"{kind.name}-", count=sum(kind.gangs))
            assert {event.subject for event in gone} == {event.subject for event in placed}
    assert shown["metadata"]["labels"]["kai.scheduler/queue"] in ("research", "vision", "speech")
    cycles = Counter(decode_payload(event).cycle for event in placed)
    groups = sorted(kind.gangs)
    assert sorted(cycles.values()) in (groups, [sum(groups)]), "each group starts in one cycle, perhaps the same one"


def _is(shown: Json, name: str) -> bool:
    return bool(shown["metadata"]["name"] == name)


async def test_the_demonstration_does_not_go_idle_and_its_backlog_stays_small(stack: LiveStack) -> None:
    """In a hurry: work comes and goes ten times as fast, and asks for more than three nodes have."""
    said: list[str] = []
    async with stack.client() as client, stack.log() as log:
        state, most_waiting = await _until_now(log), 0
        before, ended = _over(state), set[str]()
        life = asyncio.create_task(Life(client, seed=1, report=said.append, pace=10).run(seconds=None))
        try:
            async with asyncio.timeout(2 * PATIENCE_S):
                # Some have ended, and others run, of whom some end, too, while others run.
                for enough in (3, 6):
                    while len(ended) < enough or not any(entry.stage is Stage.BOUND for entry in ours(state)):
                        if not (events := await log.read("e2e", after=state.position, limit=100)):
                            await log.wait_beyond("e2e", state.position, timeout_s=5)
                        state.fold_all(events)
                        ended |= _over(state) - before
                        most_waiting = max(most_waiting, len(state.waiting))
                        assert not life.done(), life
        finally:
            life.cancel()
            with suppress(asyncio.CancelledError):
                await life
    await stack.check()
    assert not [line for line in said if line.startswith("refused")]
    assert 0 < most_waiting < 2 * MOST_WAITING


async def _until_now(log: EventLog) -> ClusterState:
    state = ClusterState("e2e")
    while events := await log.read("e2e", after=state.position, limit=5000):
        state.fold_all(events)
    return state


def _over(state: ClusterState) -> set[str]:
    return {entry.pod.uid for entry in ours(state) if entry.pod.phase == "Succeeded"}
