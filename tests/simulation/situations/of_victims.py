"""Pods that are not evicted or moved for a pod, and pods that it waits for."""

from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events.reasons import making_room as reasons
from kaicore.rules.model.pod import Pod

from tests.given.cluster.factory import Cluster, pod
from tests.given.cluster.hierarchy import queue
from tests.given.cluster.racks import asks
from tests.given.work.groups import job
from tests.given.work.workloads import Workloads
from tests.simulation.situations import shows
from tests.unit.engine.test_consolidation import again, halves, nodes, runs
from tests.unit.engine.test_why_waiting import HOUR, QUEUE_LABEL, full

ASKS = "8 nvidia.com/gpu"


def asking(cluster: Workloads, **spec: object) -> tuple[Cluster, Pod]:
    return cluster, cluster.add_pod(pod("one", **({"cpu": 1, "gpu": 8, "priority": 9} | spec)))  # type: ignore[arg-type]


def whole(cluster: Workloads) -> tuple[Cluster, Pod]:
    return cluster, cluster.state.pods["uid-whole"].pod


@shows(reasons.WaitsForVictims, "n0", "1 of its pods", ASKS)
def victims() -> tuple[Cluster, Pod]:
    cluster, one = asking(full())
    cluster.cycle()
    return cluster, one


@shows(reasons.RoomKeptForOthers, "n0", "Pod default/first", "4 nvidia.com/gpu")
def kept_for_others() -> tuple[Cluster, Pod]:
    cluster = nodes(1)
    cluster.full(cluster.add_pod(pod("low", cpu=1, gpu=4)))
    cluster.add_pod(pod("first", cpu=1, gpu=8, priority=9))
    return cluster, cluster.add_pod(pod("second", cpu=1, gpu=4, priority=5))


@shows(reasons.NeverPreempts, "Never", ASKS, "n0")
def never() -> tuple[Cluster, Pod]:
    return asking(full(), preemption_policy="Never")


@shows(reasons.PreemptionDelayNotElapsed, "from 20", ASKS, "n0")
def delayed() -> tuple[Cluster, Pod]:
    cluster = full()
    group = {"preemption_delay_us": 30_000_000, "created_at": cluster.now // 1_000_000}
    return cluster, cluster.gang("gang", 1, cpu=1, gpu=8, priority=9, group=group)[0]


@shows(reasons.NoVictimsWouldHelp, "Preempted", "63 cpu", ASKS, "n0")
def no_victims() -> tuple[Cluster, Pod]:
    cluster = full()
    cluster.add_pod(pod("firm", cpu=2, gpu=0, priority=10, node_name="n0", phase="Running"))
    return asking(cluster, cpu=63)


@shows(reasons.ProtectedByDisruptionBudget, "default/b", "2 pods", "0 disruptions", ASKS)
def protected() -> tuple[Cluster, Pod]:
    cluster = full()
    cluster.budget(0)
    return asking(cluster)


@shows(reasons.UnderSeveralDisruptionBudgets, "default/b, default/c", "2 pods", "4 nvidia.com/gpu")
def under_several() -> tuple[Cluster, Pod]:
    cluster = full()
    for name in "bc":
        cluster.budget(1, name=name)
    return asking(cluster, gpu=4)


@shows(reasons.WithinMinimumRuntime, "2 pods", "until 20", ASKS)
def within_runtime() -> tuple[Cluster, Pod]:
    cluster = full(queues=(queue("a", reclaim_min_runtime_us=HOUR), queue("b", quota=8)), of_queue="a")
    return asking(cluster, labels={QUEUE_LABEL: "b"}, priority=0)


@shows(reasons.VictimSearchEnded, ASKS, "n0", config=EngineConfig(search_steps=0))
def search_ended() -> tuple[Cluster, Pod]:
    return asking(full())


@shows(reasons.NoMoveWouldHelp, ASKS, "n0")
def no_move() -> tuple[Cluster, Pod]:
    cluster = nodes(2)
    halves(cluster, owner=None)
    return whole(cluster)


@shows(reasons.PodsWithoutController, "default/half-n0", ASKS)
def without_controller() -> tuple[Cluster, Pod]:
    return no_move()


@shows(reasons.GroupsThatCannotRestart, "default/g-0", ASKS)
def cannot_restart() -> tuple[Cluster, Pod]:
    cluster = nodes(2)
    cluster.gang("g", 1, topology=asks("rack"), cpu=1, gpu=4, node_name="n0", phase="Running")
    runs(cluster, "bare", "n1", 4, owner=None)
    return cluster, cluster.add_pod(pod("whole", cpu=1, gpu=8))


@shows(reasons.MovedLately, "default/p-again", "until 20", ASKS)
def moved_lately() -> tuple[Cluster, Pod]:
    cluster = nodes(2)
    runs(cluster, "p", "n0", 2)
    runs(cluster, "bare", "n1", 4, owner=None)
    first = cluster.add_pod(pod("first", cpu=1, gpu=8))
    again(cluster, cluster.cycle(), "n1", "-again")
    cluster.delete_pod(first)
    cluster.delete_pod(cluster.state.pods["uid-bare"].pod)
    runs(cluster, "bare-2", "n0", 4, owner=None)
    cluster.now += 300_000_000
    return cluster, cluster.add_pod(pod("second", cpu=1, gpu=8))


@shows(reasons.NoOtherPlaceForThem, "2 groups", "default/half-n0", ASKS)
def no_other_place() -> tuple[Cluster, Pod]:
    cluster = nodes(2)
    for node in ("n0", "n1"):
        runs(cluster, f"half-{node}", node, 4, node_selector={"host": node})
    return cluster, cluster.add_pod(pod("whole", cpu=1, gpu=8))


@shows(reasons.TooManyToMove, "2 groups", "1 may be", ASKS, "n0", config=EngineConfig(consolidate_groups=1))
def too_many() -> tuple[Cluster, Pod]:
    cluster = nodes(2)
    for number in range(4):
        runs(cluster, f"small-{number}", f"n{number // 2}", 1)
    return cluster, cluster.add_pod(pod("whole", cpu=1, gpu=8))


@shows(reasons.NotWorthMoving, "100 %", ASKS, "n0")
def not_worth_it() -> tuple[Cluster, Pod]:
    cluster = nodes(2)
    cluster.gang("gang", 2, node_name="n0", cpu=1, gpu=2, phase="Running")
    runs(cluster, "bare", "n1", 4, owner=None)
    return cluster, cluster.add_pod(pod("wants", cpu=1, gpu=8))


@shows(
    reasons.LosesTooMuchWork,
    "4 GPU-hours",
    "8 GPU-hours",
    ASKS,
    "n0",
    config=EngineConfig(consolidate_win_us=1_800_000_000),
)
def loses_too_much() -> tuple[Cluster, Pod]:
    cluster = nodes(2)
    for node in ("n0", "n1"):
        runs(cluster, f"half-{node}", node, 4, start_time=cluster.now // 1_000_000 - 2 * 3600)
    return cluster, cluster.add_pod(pod("whole", cpu=1, gpu=8))


@shows(reasons.JobWouldFail, "2 groups", "Job.batch default/other", ASKS)
def job_would_fail() -> tuple[Cluster, Pod]:
    cluster = nodes(2)
    owners = job(cluster, spec={"backoffLimit": 0}), job(cluster, "other", spec={"backoffLimit": 0})
    for number, owner in enumerate(owners):
        runs(cluster, f"{owner.name}-0", f"n{number}", 4, owner=owner)
    return cluster, cluster.add_pod(pod("whole", cpu=1, gpu=8))
