"""The invariants at the end, when all faults are over and nothing happens any more."""

from typing import TYPE_CHECKING

from kaicore.rules.deciding.replay import KNOWN_BEFOREHAND, Replay
from kaicore.rules.state.cluster_state import ClusterState

if TYPE_CHECKING:
    from tests.simulation.site import Site
    from tests.simulation.world import World


def check_end(world: "World", site: "Site") -> None:
    """Check a cluster at the end of a run."""
    site.checker.now = world.loop.time()
    _check_everything_ran(site)
    site.checker.check_agreement()
    site.checker.shares.check_end()
    _check_replay(world, site)


def _check_everything_ran(site: "Site") -> None:
    """Everything that can run has run: what waits still is of gangs of which a member is gone for good."""
    checker = site.checker
    for pod in checker.api_pods.values():
        if pod.phase in ("Succeeded", "Failed"):
            continue
        gang = checker.pods[pod.uid].gang if pod.uid in checker.pods else ""
        if gang and not pod.node and _is_broken(site, gang):
            continue
        checker.wrong(f"pod {pod.name} is {pod.phase} on {pod.node!r} in the end")


def _is_broken(site: "Site", gang: str) -> bool:
    checker, members = site.checker, site.members.get(gang, [])
    able = sum(
        (uid in checker.api_pods and checker.api_pods[uid].phase != "Failed")
        or (uid in checker.pods and checker.pods[uid].succeeded)
        for uid in members
    )
    return able < site.gangs[gang]


def _check_replay(world: "World", site: "Site") -> None:
    """Every cycle decides again what it decided: on the log up to its input, so what came later changes nothing."""
    events = world.log.events(site.cluster)
    replay = Replay(ClusterState(site.cluster), [event for event in events if event.type in KNOWN_BEFOREHAND])
    for event in events:
        replay.take(event)
    for difference in replay.finish().differences:
        site.checker.wrong(f"replay: {difference}")
