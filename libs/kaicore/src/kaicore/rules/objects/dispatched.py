"""Objects that the hub gives to a cluster: they carry a mark of their dispatch, and are watched for their end."""

from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Any

Manifest = dict[str, Any]

#: Conditions by which workload APIs say that an object has ended well, or badly.
_GOOD = frozenset({"Complete", "Completed", "Succeeded", "Finished"})
_BAD = frozenset({"Failed"})

SUCCEEDED, FAILED, DELETED = "Succeeded", "Failed", "Deleted"


def marked(manifest: Manifest, annotation: str, value: str, *, scheduler_name: str) -> Manifest:
    """Return a copy with an annotation on the object, and on every template of pods in it.

    Args:
        scheduler_name: of pods that name no scheduler: another one would bind them without asking the hub.
    """
    copied = deepcopy(manifest)
    _annotate(copied, annotation, value)
    for template in _templates(copied):
        _annotate(template, annotation, value)
        template["spec"].setdefault("schedulerName", scheduler_name)
    return copied


def mark_of(document: Manifest, annotation: str) -> str:
    """Return an object's annotation; empty where it has none."""
    metadata = document.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    value = annotations.get(annotation) if isinstance(annotations, dict) else None
    return value if isinstance(value, str) else ""


def ending_of(documents: Sequence[Manifest | None]) -> str:
    """Return how objects ended, as `DispatchFinished` says it; empty while one of them goes on.

    Args:
        documents: as the API server has them now; None for one that is not there.
    """
    there = [document for document in documents if document is not None]
    if not there:
        return DELETED
    endings = [ending for ending in map(_ending, there) if ending is not None]
    if not endings and len(there) < len(documents):
        # What is left, such as a PodGroup, never ends by itself.
        return DELETED
    if not endings or "" in endings:
        return ""
    return FAILED if FAILED in endings else SUCCEEDED


def _ending(document: Manifest) -> str | None:
    """Return how an object ended; empty while it goes on, None for one that never ends, such as a ConfigMap."""
    status = document.get("status")
    status = status if isinstance(status, dict) else {}
    if document.get("kind") == "Pod":
        phase = status.get("phase")
        return phase if phase in (SUCCEEDED, FAILED) else ""
    if not any(True for _ in _templates(document)):
        return None
    conditions = status.get("conditions")
    met = {
        condition.get("type")
        for condition in (conditions if isinstance(conditions, list) else ())
        if isinstance(condition, dict) and condition.get("status") == "True"
    }
    return FAILED if met & _BAD else SUCCEEDED if met & _GOOD else ""


def _templates(value: Any) -> Iterable[Manifest]:
    if isinstance(value, dict):
        spec = value.get("spec")
        if isinstance(spec, dict) and isinstance(spec.get("containers"), list):
            yield value
        for inner in value.values():
            yield from _templates(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _templates(inner)


def _annotate(document: Manifest, annotation: str, value: str) -> None:
    metadata = document.get("metadata")
    metadata = document["metadata"] = dict(metadata) if isinstance(metadata, dict) else {}
    annotations = metadata.get("annotations")
    metadata["annotations"] = {**(annotations if isinstance(annotations, dict) else {}), annotation: value}
