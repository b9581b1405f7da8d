"""The labels and annotations by which objects name the queue that pays for them."""

from collections.abc import Mapping

from kaicore.rules.model.pod import Pod

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


def names_kai_queue(pod: Pod) -> bool:
    """Tell whether a pod names its queue in KAI's words."""
    return any(pod.labels.get(label) for label in _KAI_QUEUE_LABELS)


def is_admitted(pod: Pod) -> bool:
    """Tell whether a pod has what Kueue writes on pods that it admits."""
    return KUEUE_POD_SET_LABEL in pod.labels
