"""What must hold in the end, when all faults are healed and nothing happens any more."""

from typing import TYPE_CHECKING

from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.replay import KNOWN_BEFOREHAND, Replay

from tests.simulation.services import CLUSTER

if TYPE_CHECKING:
    from tests.simulation.world import World


def check_end(world: "World") -> None:
    """Check a run at its end."""
    world.checker.now = world.loop.time()
    _check_everything_ran(world)
    world.checker.check_agreement()
    _check_replay(world)


def _check_everything_ran(world: "World") -> None:
    """Everything that can run has run: what waits still is of gangs of which a member is gone for good."""
    checker = world.checker
    for pod in checker.api_pods.values():
        if pod.phase in ("Succeeded", "Failed"):
            continue
        gang = checker.pods[pod.uid].gang if pod.uid in checker.pods else ""
        if gang and not pod.node and _is_broken(world, gang):
            continue
        checker.wrong(f"pod {pod.name} is {pod.phase} on {pod.node!r} in the end")


def _is_broken(world: "World", gang: str) -> bool:
    checker, members = world.checker, world.members.get(gang, [])
    able = sum(
        (uid in checker.api_pods and checker.api_pods[uid].phase != "Failed")
        or (uid in checker.pods and checker.pods[uid].succeeded)
        for uid in members
    )
    return able < world.gangs[gang]


def _check_replay(world: "World") -> None:
    """Every cycle decides again what it decided: on the log up to its input, so what came later changes nothing."""
    events = world.log.events(CLUSTER)
    replay = Replay(ClusterState(CLUSTER), [event for event in events if event.type in KNOWN_BEFOREHAND])
    for event in events:
        replay.take(event)
    for difference in replay.finish().differences:
        world.checker.wrong(f"replay: {difference}")
