"""DELETE: at once, gracefully, or when the last finalizer has gone."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from kai_apiserver.errors import NamedResource, bad_request, conflict
from kai_apiserver.objects import Object, timestamp
from kai_apiserver.resources.registry import ResourceType
from kai_apiserver.resources.types import Mismatch, decode
from kai_apiserver.rest.backend import Backend, Operation
from kai_apiserver.store import Stored

ORPHAN = "orphan"
FOREGROUND = "foregroundDeletion"
_PODS = "pods"
_JOBS = "jobs.batch"
_NAMESPACES = "namespaces"
_NAMESPACE_GOES = (
    "The system is ensuring all content is removed from this namespace.  Upon completion, this namespace will "
    "automatically be purged by the system."
)
_JOB_PODS_STAY = (
    "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set "
    "propagationPolicy=Orphan to suppress this warning"
)


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """The options of a deletion.

    Attributes:
        grace_s: seconds that a pod gets; None: what the pod says.
        uid: only if the object has it.
        resource_version: only if the object is at it.
        propagation: `Background`, `Foreground`, `Orphan`, or empty for the kind's own way.
        dry_run: only say what would happen.
    """

    grace_s: int | None = None
    uid: str = ""
    resource_version: str = ""
    propagation: str = ""
    dry_run: bool = False

    @classmethod
    def read(cls, given: Any, query: dict[str, str]) -> "DeleteOptions":
        """Read a `DeleteOptions` body, or without one the query. Raises StatusError: 400 if it cannot be read."""
        try:
            options, _ = decode("V1DeleteOptions", given or {})
        except Mismatch as error:
            raise bad_request(str(error)) from error
        seconds = query.get("gracePeriodSeconds")
        if seconds is not None:
            try:
                options.setdefault("gracePeriodSeconds", int(seconds))
            except ValueError as error:
                why = f'gracePeriodSeconds: strconv.ParseInt: parsing "{seconds}": invalid syntax'
                raise bad_request(why) from error
        preconditions = options.get("preconditions") or {}
        propagation = options.get("propagationPolicy") or query.get("propagationPolicy", "")
        orphan = options.get("orphanDependents", {"true": True, "false": False}.get(query.get("orphanDependents", "")))
        if not propagation and orphan is not None:
            propagation = "Orphan" if orphan else "Background"
        return cls(
            grace_s=options.get("gracePeriodSeconds"),
            uid=preconditions.get("uid", ""),
            resource_version=preconditions.get("resourceVersion", ""),
            propagation=propagation,
            dry_run=bool(options.get("dryRun") or query.get("dryRun")),
        )


def delete(
    backend: Backend, stored: Stored, *, resource: ResourceType, options: DeleteOptions, operation: Operation
) -> tuple[Stored, bool]:
    """Delete an object; return its last state and whether it is gone already.

    Raises StatusError: 409, a precondition does not hold.
    """
    _check_preconditions(resource, stored, options=options)
    new = stored.decode()
    metadata = new["metadata"]
    grace = _grace(new, options) if resource.storage == _PODS else 0
    finalizers = _finalizers(metadata, _propagation(resource, options, operation=operation))
    marked = "deletionTimestamp" in metadata
    graceful = resource.storage in (_PODS, _NAMESPACES)
    if marked and finalizers == (metadata.get("finalizers") or []):
        if resource.storage == _NAMESPACES:
            raise conflict(resource, stored.name, why=_NAMESPACE_GOES)
        if resource.storage != _PODS or grace >= metadata.get("deletionGracePeriodSeconds", 0):
            return stored, False  # it is on its way; a grace period is shortened, never lengthened
    if finalizers or graceful:
        _mark(new, resource=resource, finalizers=finalizers, grace=grace, now=backend.now())
        collection = backend.collection(resource)
        stored = Stored(collection.resource, new) if options.dry_run else backend.store.update(collection, new, stored)
    if grace or finalizers or (new.get("spec") or {}).get("finalizers"):
        return stored, False
    if options.dry_run:
        return stored, True
    return backend.store.delete(backend.collection(resource), stored), True


def _check_preconditions(resource: ResourceType, stored: Stored, *, options: DeleteOptions) -> None:
    named = NamedResource(resource.kind, resource.group)
    if options.uid and options.uid != stored.uid:
        raise conflict(
            named,
            stored.name,
            why=f"the UID in the precondition ({options.uid}) does not match the UID in record ({stored.uid}). The "
            "object might have been deleted and then recreated",
        )
    if options.resource_version and options.resource_version != str(stored.rv):
        raise conflict(
            named,
            stored.name,
            why=f"the ResourceVersion in the precondition ({options.resource_version}) does not match the "
            f"ResourceVersion in record ({stored.rv}). The object might have been modified",
        )


def _grace(pod: Object, options: DeleteOptions) -> int:
    """Seconds until the kubelet must be done; none for a pod that no kubelet runs."""
    spec = pod["spec"]
    if not spec.get("nodeName") or pod["status"].get("phase") in ("Failed", "Succeeded"):
        return 0
    asked = options.grace_s if options.grace_s is not None else spec.get("terminationGracePeriodSeconds", 30)
    return 1 if asked < 0 else int(asked)


def _propagation(resource: ResourceType, options: DeleteOptions, *, operation: Operation) -> str:
    """The fate of the dependents; Jobs leave their pods behind unless the request says otherwise, and say so."""
    if options.propagation or resource.storage != _JOBS:
        return options.propagation
    operation.warnings.append(_JOB_PODS_STAY)
    return "Orphan"


def _finalizers(metadata: Object, propagation: str) -> list[str]:
    """The object's finalizers, with the one that its dependents' fate asks for."""
    present: list[str] = list(metadata.get("finalizers") or ())
    if not propagation:
        return present
    others = [name for name in present if name not in (ORPHAN, FOREGROUND)]
    wanted = {"Orphan": [ORPHAN], "Foreground": [FOREGROUND]}.get(propagation, [])
    return [*others, *wanted]


def _mark(new: Object, *, resource: ResourceType, finalizers: list[str], grace: int, now: datetime) -> None:
    """Write the deletion into the object: when it must be over, and who has to agree."""
    metadata = new["metadata"]
    if "deletionTimestamp" not in metadata and resource.generation:
        metadata["generation"] = metadata.get("generation", 0) + 1
    if "deletionTimestamp" not in metadata or resource.storage == _PODS:
        metadata["deletionTimestamp"] = timestamp(now + timedelta(seconds=grace))
    metadata["deletionGracePeriodSeconds"] = grace
    if finalizers:
        metadata["finalizers"] = finalizers
    else:
        metadata.pop("finalizers", None)
    if resource.storage == _NAMESPACES:
        new["status"]["phase"] = "Terminating"
        metadata.pop("deletionGracePeriodSeconds")
