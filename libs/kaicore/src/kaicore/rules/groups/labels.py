"""Labels and annotations that several dialects share: queue, rank, preemption delay, longest execution, and selectors.

They name the queue that pays for a pod, the rank that a pod declares itself, and how long a pod waits before it may
have others evicted. Selectors are those of Kubernetes (`metav1.LabelSelector`). The kinds of objects that group pods
are here with their API groups.
"""

from collections.abc import Iterable, Mapping

from kaicore.errors import InvalidObject
from kaicore.rules.events.reasons.group import Malformed
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.model.group import RankSource, TopologyConstraint
from kaicore.rules.model.placement import RANK_ANNOTATION
from kaicore.rules.model.pod import Pod
from kaicore.rules.model.quantity import parse_duration
from kaicore.rules.model.selector import Requirement, meets
from kaicore.rules.objects.wire import number_in

KAI_QUEUE_LABEL = "kai.scheduler/queue"
KUEUE_QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
#: Kueue writes it on pods, or on their Job's template, when it admits their Workload, and takes it off the template
#: when it stops the Job. Source: Kueue v0.17, `pkg/constants` (PodSetLabel), `getPodSetsInfoFromStatus`.
KUEUE_POD_SET_LABEL = "kueue.x-k8s.io/podset"
VOLCANO_QUEUE_ANNOTATION = "scheduling.volcano.sh/queue-name"

#: Older words for KAI's label.
_KAI_QUEUE_LABELS = (KAI_QUEUE_LABEL, "runai/queue")


def queue_name(labels: Mapping[str, str], annotations: Mapping[str, str], *, namespace: str) -> str:
    """Return the queue that an object names, empty for none.

    A LocalQueue of Kueue is one of a namespace, and named `<namespace>/<name>`.
    """
    for label in _KAI_QUEUE_LABELS:
        if labels.get(label):
            return labels[label]
    if name := labels.get(KUEUE_QUEUE_LABEL):
        return f"{namespace}/{name}"
    return annotations.get(VOLCANO_QUEUE_ANNOTATION, "")


def queue_of(pod: Pod) -> str:
    """Return the queue that a pod names, empty for none."""
    return queue_name(pod.labels, pod.annotations, namespace=pod.namespace)


#: Labels of pods that name their user, the first one that is there; KAI-Scheduler's is the second.
_USER_LABELS = ("kai.scheduler/user", "user")


def user_of(pod: Pod) -> str:
    """Return a pod's user, by its label; empty without one."""
    return next((pod.labels[name] for name in _USER_LABELS if name in pod.labels), "")


def names_kai_queue(pod: Pod) -> bool:
    """Tell whether a pod names its queue in KAI's words."""
    return bool(pod.labels) and any(pod.labels.get(label) for label in _KAI_QUEUE_LABELS)


def is_admitted(pod: Pod) -> bool:
    """Tell whether a pod has what Kueue writes on pods that it admits."""
    return KUEUE_POD_SET_LABEL in pod.labels


PREEMPTION_DELAY_ANNOTATION = "kai.scheduler/preemption-delay"


def preemption_delay_us(pod: Pod) -> int:
    """Return the delay in microseconds; 0 without one. Raises InvalidObject: it is no duration."""
    text = pod.annotations.get(PREEMPTION_DELAY_ANNOTATION)
    if not text:
        return 0
    return parse_duration(text, subject=pod.subject, field=f"metadata.annotations[{PREEMPTION_DELAY_ANNOTATION}]")


def preemption_delay_problem(pod: Pod) -> Reason | None:
    """Return what is wrong with the delay; None if nothing is."""
    if not pod.annotations:
        return None
    try:
        preemption_delay_us(pod)
    except InvalidObject as error:
        return Malformed(problem=str(error))
    return None


PRIORITY_CLASS_LABEL = "priorityClassName"
#: On a Job: how many of its pods start together.
MIN_MEMBER_ANNOTATION = "kai.scheduler/batch-min-member"
PREEMPTIBILITY_LABEL = "kai.scheduler/preemptibility"
PREEMPTIBILITIES = {"preemptible": True, "non-preemptible": False}
VOLCANO_PREEMPTABLE = "volcano.sh/preemptable"
_VOLCANO_WORDS = {"true": True, "false": False}


def volcano_preemptable(labels: Mapping[str, str], annotations: Mapping[str, str]) -> bool | None:
    """Return whether work may be preempted, in Volcano's words; None where they say nothing."""
    texts = (annotations.get(VOLCANO_PREEMPTABLE), labels.get(VOLCANO_PREEMPTABLE))
    return next((_VOLCANO_WORDS[text] for text in texts if text in _VOLCANO_WORDS), None)


#: Kueue ends a Workload that has been admitted for so many seconds (`maximumExecutionTimeSeconds`): on a job of any
#: kind, or on the pods of a pod group. Source: Kueue, KEP 3125.
KUEUE_LIMIT_LABEL = "kueue.x-k8s.io/max-exec-time-seconds"
#: So long a PodGroup of Volcano, or a pod, runs at most, such as `500s`. Source: Volcano, its reserve plugin's design.
VOLCANO_LIMIT_ANNOTATION = "volcano.sh/maximum-runtime"


def declared_limit_s(labels: Mapping[str, str], annotations: Mapping[str, str]) -> int:
    """Return for how many seconds at most an object's pods run, as its labels and annotations say; 0 for no limit.

    What is no such time says nothing.
    """
    limits = [number_in(labels.get(KUEUE_LIMIT_LABEL, ""), digits=_MOST_DIGITS) or 0]
    try:
        text = annotations.get(VOLCANO_LIMIT_ANNOTATION, "")
        limits.append(parse_duration(text, subject="", field="") // 1_000_000 if text else 0)
    except InvalidObject:
        pass
    return least_limit_s(*limits)


def least_limit_s(*limits: int) -> int:
    """Return the least positive limit in seconds; 0 without any."""
    return min((limit for limit in limits if limit > 0), default=0)


#: Kueue ends a job with pods on more failed nodes at once, and replaces nodes one by one up to so many. Source: Kueue
#: 0.20 (alpha, TASReplaceMultipleFailedNodes), PR 12344.
FAILED_NODES_THRESHOLD = "kueue.x-k8s.io/tas-unhealthy-nodes-eviction-threshold"

#: The rank of a pod that has none.
NO_RANK = -1
#: Ranks of more digits are taken for none.
_MOST_DIGITS = 9


def own_rank(pod: Pod, source: RankSource | None) -> int:
    """Return the rank that a pod names; `NO_RANK` where it names none that is a number from the first on."""
    if source is None:
        return NO_RANK
    number = _number(pod, source.label)
    job = _number(pod, source.job_label) if source.job_label else 0
    if job == NO_RANK or number < source.offset:
        return NO_RANK
    return job * source.job_size + number - source.offset


def placed_rank(pod: Pod) -> int:
    """Return the rank that the binding of a pod wrote on it; `NO_RANK` for none."""
    return _number(pod, RANK_ANNOTATION)


def rank_order(pod: Pod, source: RankSource | None) -> tuple[bool, int]:
    """Order pods by the ranks that they name; those that name none come last."""
    rank = own_rank(pod, source)
    return rank == NO_RANK, rank


def _number(pod: Pod, name: str) -> int:
    number = number_in(pod.labels.get(name) or pod.annotations.get(name, ""), digits=_MOST_DIGITS)
    return NO_RANK if number is None else number


#: Of a value that cannot be read people are shown so many letters.
_MOST_LETTERS = 80


def refused(kind: str, field: str, problem: str, value: object = None) -> TopologyConstraint:
    """Return the constraint of pods with an impossible one: what is wrong with which field."""
    given = value[:_MOST_LETTERS] if isinstance(value, str) else value
    shown = "" if value is None else f": {given!r}"
    return TopologyConstraint(kind=kind, problem=f"{field}: {problem}{shown}")


OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")


def matches(labels: Mapping[str, str], match_labels: Mapping[str, str], requirements: Iterable[Requirement]) -> bool:
    """Tell whether labels are selected; nothing asked for selects everything."""
    return all(labels.get(key) == value for key, value in match_labels.items()) and meets(labels, requirements)


KAI_POD_GROUP = "PodGroup.scheduling.run.ai"
SIGS_POD_GROUP = "PodGroup.scheduling.sigs.k8s.io"
X_POD_GROUP = "PodGroup.scheduling.x-k8s.io"
NATIVE_POD_GROUP = "PodGroup.scheduling.k8s.io"
COMPOSITE_POD_GROUP = "CompositePodGroup.scheduling.k8s.io"
VOLCANO_POD_GROUP = "PodGroup.scheduling.volcano.sh"
WORKLOAD = "Workload.scheduling.k8s.io"

JOB = "Job.batch"
VOLCANO_JOB = "Job.batch.volcano.sh"

#: Kueue makes one for each job, pod or pod group. How long that may run is read of it; the pods say all the rest.
KUEUE_WORKLOAD = "Workload.kueue.x-k8s.io"

#: Kinds of objects that are groups, with or without pods, and may get a status.
POD_GROUPS = frozenset(
    {KAI_POD_GROUP, SIGS_POD_GROUP, X_POD_GROUP, NATIVE_POD_GROUP, COMPOSITE_POD_GROUP, VOLCANO_POD_GROUP}
)

#: Jobs of Jobs of Volcano, whichever of its API groups serves them.
HYPER_JOBS = frozenset({"HyperJob.topology.volcano.sh", "HyperJob.training.volcano.sh"})
