"""The pod that holds a GPU that is opened for sharing, as far as accounts need it before it is there."""

from kaicore.rules.model.gpu_share import GPU, GPU_GROUP_LABEL
from kaicore.rules.model.pod import Container, Pod, QosClass
from kaicore.rules.objects.wire import DEFAULT_SCHEDULER

#: Begins the uid of a planned reservation pod.
PLANNED = "gpu-group/"
_ONE = {GPU: 1}


def planned_uid(group: str) -> str:
    """Return the uid by which the planned reservation pod of a GPU group is known."""
    return f"{PLANNED}{group}"


def planned_pod(namespace: str, name: str, group: str) -> Pod:
    """Return the reservation pod of a GPU group as it will be made."""
    return Pod(
        uid=planned_uid(group),
        namespace=namespace,
        name=name,
        resource_version="",
        created_at=0,
        scheduler_name=DEFAULT_SCHEDULER,
        qos=QosClass.BEST_EFFORT,
        containers=(Container("resource-reservation", requests=_ONE, limits=_ONE),),
        labels={GPU_GROUP_LABEL: group},
    )
