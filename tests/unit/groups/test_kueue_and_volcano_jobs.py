"""Jobs of Kueue and Volcano, taken as they are: what of them must start together."""

import pytest
from kaicore.errors import InvalidObject

from tests.given.work.groups import World, shape, source

TASKS = "tasks: [{name: ps, replicas: 1}, {name: worker, replicas: 4, minAvailable: 2}]"


def job(annotations: str = "", *, queue: bool = True, spec: str = "{parallelism: 4}") -> str:
    labels = "labels: {kueue.x-k8s.io/queue-name: team-a}, " if queue else ""
    metadata = f"{{name: j, {labels}annotations: {{{annotations}}}}}"
    return f"apiVersion: batch/v1\nkind: Job\nmetadata: {metadata}\nspec: {spec}\n"


MIN_PARALLELISM = "kueue.x-k8s.io/job-min-parallelism"


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        # A Job with a queue of Kueue is taken as a whole: all that run at once.
        (job(), ">=4"),
        (job(spec="{}"), ">=1"),
        (job(spec="{parallelism: 8, completions: 3}"), ">=3"),
        # Partial admission leaves it no fewer than it says, and no more than there are.
        (job(f"{MIN_PARALLELISM}: '2'"), ">=2"),
        (job(f"{MIN_PARALLELISM}: '9'"), ">=4"),
        # Without such a queue neither is said to us.
        (job(queue=False), ">=1"),
        (job(f"{MIN_PARALLELISM}: '2'", queue=False), ">=1"),
        # Our own word is the last.
        (job("kai.scheduler/batch-min-member: '3'"), ">=3"),
    ],
)
def test_a_job_with_a_queue_of_kueue_starts_as_a_whole(text: str, tree: str) -> None:
    assert shape(source(text).templates[0].sets) == tree


def test_a_jobs_queue_is_the_local_queue_of_its_namespace() -> None:
    assert source(job()).queue == "default/team-a"


@pytest.mark.parametrize("text", ["0", "-1", "all", "9" * 5000, ""])
def test_a_minimum_that_is_no_count_is_named(text: str) -> None:
    with pytest.raises(InvalidObject, match=r"job-min-parallelism.*is no count of 1 or more"):
        source(job(f"{MIN_PARALLELISM}: '{text}'"))


def volcano(spec: str, metadata: str = "") -> str:
    return f"apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {{name: v, {metadata}}}\nspec: {{{spec}}}\n"


@pytest.mark.parametrize(
    ("spec", "tree"),
    [
        # Said or not, the whole asks for what its tasks do; each task for its minAvailable, or all of it.
        (TASKS, "(ps>=1 worker>=2 -)/all>=3"),
        (f"minAvailable: 0, {TASKS}", "(ps>=1 worker>=2 -)/all>=3"),
        (f"minAvailable: 5, {TASKS}", "(ps>=1 worker>=2 -)/all>=5"),
        # With less than that it may start with any of its pods.
        (f"minAvailable: 2, {TASKS}", "(ps worker -)/all>=2"),
        # Tasks without a name are called by their place.
        ("tasks: [{replicas: 2}, {replicas: 1}]", "(default0>=2 default1>=1 -)/all>=3"),
        ("tasks: []", ""),
        ("minAvailable: 3", ">=3"),
    ],
)
def test_the_tasks_of_a_volcano_job_and_what_of_them_must_start(spec: str, tree: str) -> None:
    assert shape(source(volcano(spec)).templates[0].sets) == tree


def test_pods_of_a_volcano_job_that_have_ended_well_count_by_its_status() -> None:
    status = "status: {taskStatusCount: {worker: {phase: {Succeeded: 2, Running: 1}}, gone: {}}}\n"
    sets = source(volcano(TASKS) + status).templates[0].sets
    assert {one.name: one.ended for one in sets} == {"": 0, "ps": 0, "worker": 2, "-": 0}


def test_queue_priority_and_preemptability_of_a_volcano_job() -> None:
    parsed = source(
        volcano(f"queue: research, priorityClassName: high, {TASKS}", 'annotations: {volcano.sh/preemptable: "false"}')
    )
    assert (parsed.queue, parsed.priority_class, parsed.preemptible) == ("research", "high", False)
    assert source(volcano(TASKS, 'labels: {volcano.sh/preemptable: "true"}')).preemptible is True


RESTART = "policies: [{event: PodEvicted, action: RestartJob}]"


@pytest.mark.parametrize(
    ("spec", "whole"),
    [
        (TASKS, False),
        # When the eviction of one pod ends all of them, all are evicted or none.
        (f"{RESTART}, {TASKS}", True),
        (f"policies: [{{events: [PodFailed, PodEvicted], action: AbortJob}}], {TASKS}", True),
        (f"policies: [{{event: '*', action: TerminateJob}}], {TASKS}", True),
        (f"policies: [{{event: PodFailed, action: RestartJob}}], {TASKS}", False),
        (f"policies: [{{event: PodEvicted, action: RestartTask}}], {TASKS}", False),
        # The first that is about it counts, a task's own before the job's.
        (f"policies: [{{event: PodEvicted, action: RestartPod}}, {{event: '*', action: AbortJob}}], {TASKS}", False),
        (f"{RESTART}, tasks: [{{replicas: 2, policies: [{{event: PodEvicted, action: RestartTask}}]}}]", False),
        (f"tasks: [{{replicas: 1}}, {{replicas: 2, {RESTART}}}]", True),
    ],
)
def test_policies_of_a_volcano_job_say_whether_it_can_lose_a_pod(spec: str, whole: bool) -> None:
    assert source(volcano(spec)).ends_whole is whole


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (f"networkTopology: {{mode: hard, highestTierAllowed: 1}}, {TASKS}", "spec.networkTopology.highestTierAllowed"),
        (
            "tasks: [{replicas: 2, partitionPolicy: {totalPartitions: 1, partitionSize: 2,"
            " networkTopology: {highestTierAllowed: 1}}}]",
            "spec.tasks[0].partitionPolicy.networkTopology.highestTierAllowed",
        ),
    ],
)
def test_what_a_volcano_job_requires_of_the_network_is_read(spec: str, field: str) -> None:
    fields = [one.topology.field for one in source(volcano(spec)).templates[0].sets if one.topology is not None]
    assert fields == [field]


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("tasks: [{name: a, replicas: -1}]", r"spec.tasks\[0\].replicas: must be a whole number of 0 or more: -1"),
        ("tasks: [{name: a}, {name: a}]", r"spec.tasks\[1\].name: is the name of another task: 'a'"),
        ("minAvailable: -1", "spec.minAvailable: must be a whole number of 0 or more: -1"),
        (
            "tasks: [{name: a, minAvailable: -1}]",
            r"spec.tasks\[0\].minAvailable: must be a whole number of 0 or more: -1",
        ),
    ],
)
def test_what_a_volcano_job_cannot_be_is_named(spec: str, problem: str) -> None:
    with pytest.raises(InvalidObject, match=problem):
        source(volcano(spec))


POD = (
    "apiVersion: v1\nkind: Pod\nmetadata: {name: p, annotations: {scheduling.k8s.io/group-name: v-uid-v,"
    " volcano.sh/task-spec: worker}, ownerReferences: [{apiVersion: batch.volcano.sh/v1alpha1, kind: Job, name: v,"
    " uid: uid-v, controller: true}]}\nspec: {}\n"
)
GROUP = (
    "apiVersion: scheduling.volcano.sh/v1beta1\nkind: PodGroup\nmetadata: {name: v-uid-v}\n"
    "spec: {minMember: 3, minTaskMember: {ps: 1, worker: 2}}\n"
)


def group_of(world: World) -> tuple[str, str]:
    (entry,) = world.state.pods.values()
    return entry.group, entry.pod_set


@pytest.mark.parametrize("order", ["job, pod", "pod, job"])
def test_the_job_speaks_for_a_podgroup_that_is_not_there_yet(order: str) -> None:
    """Volcano's controller makes the PodGroup that the pods name, and may be late, or not be there at all."""
    world = World()
    for name in order.split(", "):
        world.apply({"job": volcano(TASKS), "pod": POD}[name])
    assert group_of(world) == ("Job.batch.volcano.sh/default/v", "worker")
    world.apply(GROUP)
    assert group_of(world) == ("PodGroup.scheduling.volcano.sh/default/v-uid-v", "worker")


def test_a_pod_whose_podgroup_and_job_are_both_not_there_waits_for_the_podgroup() -> None:
    world = World()
    world.apply(POD)
    (entry,) = world.state.pods.values()
    assert entry.group_problem is not None
    assert entry.group_problem.group == "PodGroup.scheduling.volcano.sh default/v-uid-v"
