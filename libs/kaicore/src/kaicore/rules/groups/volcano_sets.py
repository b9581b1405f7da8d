"""The pod set of a pod in a Volcano Job or a HyperJob."""

from collections.abc import Sequence

from kaicore.rules.model.group import PodSet
from kaicore.rules.model.pod import Pod

TASK_NAME = "volcano.sh/task-spec"
TASK_INDEX = "volcano.sh/task-index"
PARTITION_LABEL = "volcano.sh/partition-id"

#: Name of the set of pods that belong to no other one.
REST = "-"

#: Python reads no number of thousands of digits.
_MOST_DIGITS = 10


def volcano_set(pod: Pod, sets: Sequence[PodSet], job: str = "") -> tuple[str, bool]:
    """Return the name of the set that a pod is of, and whether that is a partition of its task.

    A pod tells its partition by its label. One without it tells its number, and partitions are of equal size.

    Args:
        pod: the pod.
        sets: the tree.
        job: name of the job's own set where the tree is of several jobs; empty otherwise.
    """
    task = pod.annotations.get(TASK_NAME, "")
    name = ".".join(part for part in (job, task) if part)
    size = next((one.min_pods for one in sets[1:] if one.parent == name), 0) if task else 0
    if not size:
        return name, False
    partition = pod.labels.get(PARTITION_LABEL, "")
    index = pod.labels.get(TASK_INDEX) or pod.annotations.get(TASK_INDEX, "")
    if not partition and index.isdecimal() and len(index) <= _MOST_DIGITS:
        partition = str(int(index) // size)
    return f"{name}.{partition}", True


def job_of_hyper_job(pod: Pod, key: str) -> str:
    """Return the name of the set of the Job that owns a pod: the Job's own, without that of its HyperJob.

    Args:
        pod: the pod.
        key: of the HyperJob, `<kind>/<namespace>/<name>`.
    """
    hyper_job = key.split("/", 2)[2]
    return pod.owner.name.removeprefix(f"{hyper_job}-") if pod.owner is not None else ""
