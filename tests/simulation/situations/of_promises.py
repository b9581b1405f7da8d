"""Pods that wait because of a reserved start, their own or another group's."""

import msgspec
from kaicore.rules.engine.config import Action, Backfill, EngineConfig
from kaicore.rules.events.reasons import making_room as reasons
from kaicore.rules.model.pod import Pod

from tests.given.cluster.factory import Cluster, pod
from tests.given.work.workloads import Workloads
from tests.simulation.situations import shows
from tests.simulation.situations.of_groups import nodes

_HOUR_S = 3_600
_CONFIG = EngineConfig(actions=(Action.ALLOCATE,), backfill=Backfill.EASY, hold_after_us=0)
_HOLD = msgspec.structs.replace(_CONFIG, hold_us=_HOUR_S * 1_000_000)


def half_taken() -> tuple[Workloads, Pod]:
    """Return one node of which half is taken for an hour, and a pod of a gang that waits for all of it."""
    cluster = nodes(1)
    cluster.full(cluster.add_pod(pod("first", cpu=1, gpu=4, active_deadline_s=_HOUR_S)))
    return cluster, cluster.gang("whole", 2, cpu=1, gpu=4)[0]


@shows(reasons.RoomPromised, "n0", "earliest start", "since", config=_CONFIG)
def promised() -> tuple[Cluster, Pod]:
    return half_taken()


@shows(reasons.WouldDelay, "n0", "PodGroup", "default/whole", config=_CONFIG)
def would_delay() -> tuple[Cluster, Pod]:
    cluster, _ = half_taken()
    cluster.cycle(_CONFIG)
    return cluster, cluster.add_pod(pod("later", cpu=1, gpu=4, created_at=1))


@shows(reasons.PromiseGivenUp, "no longer reserved", "until", config=_HOLD)
def given_up() -> tuple[Cluster, Pod]:
    cluster = nodes(1)
    cluster.full(cluster.add_pod(pod("first", cpu=1, gpu=4)))
    whole = cluster.gang("whole", 2, cpu=1, gpu=4)[0]
    cluster.cycle(_HOLD)
    cluster.now += _HOLD.hold_us
    return cluster, whole
