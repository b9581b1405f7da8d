"""Reading of a dispatch from manifests: its queue, and the total requests of its pods."""

from collections.abc import Sequence

import msgspec

from kaicore.analysis.simulation import Located
from kaicore.analysis.submission.copied_state import CopiedState
from kaicore.analysis.submission.submitted_world import submit_objects
from kaicore.errors import InvalidObject
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events.payloads import DispatchSubmitted
from kaicore.rules.model.pod import Amounts
from kaicore.rules.model.quantity import PODS
from kaicore.rules.queues.resources import counted
from kaicore.rules.state.cluster_state import ClusterState

#: Whose decisions the binder carries out, which asks the hub before the first one.
_SCHEDULER = EngineConfig().scheduler_name


def read_dispatch(
    name: str, objects: Sequence[Located], *, clusters: Sequence[str] = (), data: Sequence[str] = ()
) -> DispatchSubmitted:
    """Return the dispatch that manifests are.

    Args:
        name: of the dispatch.
        objects: in order of creation, with apiVersion and kind.
        clusters: that it may run in; none for any.
        data: data sets that it reads.

    Raises:
        InvalidObject: an object makes no sense or has no name, there are no pods among them, or they are of several
            queues or for another scheduler.
    """
    for item in objects:
        metadata = item.object.get("metadata")
        if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
            raise InvalidObject(
                f"{item.where}, {item.object['kind']}",
                "metadata.name",
                None if not isinstance(metadata, dict) else metadata.get("name"),
                "missing: the hub must find the object again, so generateName is not enough",
            )
    state = ClusterState("hub")
    submitted = submit_objects(CopiedState(state, now=0), objects, scheduler_name=_SCHEDULER)
    if submitted.problems:
        raise InvalidObject(f"dispatch {name}", "manifests", len(objects), submitted.problems[0])
    entries = [state.pods[uid] for uid in submitted.uids]
    if not entries:
        raise InvalidObject(f"dispatch {name}", "manifests", len(objects), "make no pods, so there is nothing to run")
    others = sorted({entry.pod.scheduler_name for entry in entries} - {_SCHEDULER})
    if others:
        raise InvalidObject(
            f"dispatch {name}",
            "spec.schedulerName",
            others[0],
            f"must be {_SCHEDULER}, or left out: another scheduler does not ask the hub, so it could run twice",
        )
    queues = sorted({state.queue_of(entry)[0] for entry in entries})
    if len(queues) > 1:
        raise InvalidObject(f"dispatch {name}", "queue", ", ".join(queues), "must be one for all of its pods")
    demand: Amounts = {}
    for entry in entries:
        for resource, amount in counted(entry.requests).items():
            if resource != PODS:
                demand[resource] = demand.get(resource, 0) + amount
    return DispatchSubmitted(
        dispatch=name,
        manifests=msgspec.json.encode([item.object for item in objects]).decode(),
        queue=queues[0],
        demand=demand,
        clusters=tuple(sorted(clusters)),
        data=tuple(sorted(data)),
    )
