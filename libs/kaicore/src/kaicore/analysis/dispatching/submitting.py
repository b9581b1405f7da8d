"""Submission and withdrawal of dispatches, shared by `kai submit` and the hub's HTTP routes.

Both are idempotent by the dispatch's name: a repeated request changes nothing, so a client repeats a request that got
no answer.
"""

import re
from collections.abc import Sequence

from kaicore.analysis.dispatching.hub_log import OPERATOR, HubLog
from kaicore.analysis.dispatching.reading import read_dispatch
from kaicore.analysis.simulation import Located
from kaicore.errors import ConfigurationError, Conflict, UnknownSubject
from kaicore.rules.events.payloads import DispatchSubmitted, DispatchWithdrawn
from kaicore.rules.hub.hub_state import ENDED, DispatchEntry, DispatchStage, dispatch_stream
from kaicore.spelling import did_you_mean

#: A dispatch's name is part of an annotation and of paths: RFC 1123.
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?", re.ASCII)
#: How often something is tried that others change at the same time.
_TRIES = 5


def named_dispatch(
    objects: Sequence[Located], name: str, *, clusters: Sequence[str], data: Sequence[str]
) -> DispatchSubmitted:
    """Return the dispatch that manifests are, under a name, by default that of the first object.

    Raises:
        ConfigurationError: there are no objects, or the name is none.
        InvalidObject: an object makes no sense; see `read_dispatch`.
    """
    if not objects:
        raise ConfigurationError("no Kubernetes objects are given")
    metadata = objects[0].object.get("metadata")
    first = metadata.get("name") if isinstance(metadata, dict) else None
    chosen = name or str(first or "")
    if not _LABEL.fullmatch(chosen):
        raise ConfigurationError(f"name {chosen!r}: must be 1 to 63 of a-z, 0-9, - and ., with no - or . at either end")
    return read_dispatch(chosen, objects, clusters=clusters, data=data)


async def submit_dispatch(hub: HubLog, submitted: DispatchSubmitted, *, actor: str = OPERATOR) -> bool:
    """Submit a dispatch; return whether it is new, and was not submitted before.

    Raises:
        ConfigurationError: it names a cluster that is not registered, or there is none.
        Conflict: the name is another dispatch's.
        LogUnavailable: it is not known whether it was submitted; do the same again.
    """
    name = submitted.dispatch
    for _ in range(_TRIES):
        before = (await hub.refresh()).dispatches.get(name)
        if before is not None:
            if before.submitted == submitted:
                return False
            where = f" in {before.cluster}" if before.cluster else ""
            raise Conflict(f"dispatch {name}: is there already, another one ({before.stage}{where}); name it otherwise")
        _check_clusters(hub, submitted)
        if await hub.try_append(dispatch_stream(name), submitted, subject=name, actor=actor):
            return True
    raise Conflict(f"dispatch {name}: is changed by others all the time")


async def withdraw_dispatch(hub: HubLog, name: str, *, actor: str = OPERATOR) -> DispatchEntry:
    """Withdraw a dispatch, unless it was withdrawn before.

    Raises:
        UnknownSubject: there is none of the name.
        Conflict: it has ended.
        LogUnavailable: it is not known whether it was withdrawn; do the same again.
    """
    for _ in range(_TRIES):
        state = await hub.refresh()
        entry = state.dispatches.get(name)
        if entry is None:
            raise UnknownSubject(f"the hub knows of no dispatch {name}{did_you_mean(name, state.dispatches)}")
        if entry.stage is DispatchStage.WITHDRAWN:
            return entry
        if entry.stage in ENDED:
            raise Conflict(f"dispatch {name}: has ended already ({entry.stage})")
        await hub.try_append(dispatch_stream(name), DispatchWithdrawn(dispatch=name), subject=name, actor=actor)
    raise Conflict(f"dispatch {name}: is changed by others all the time")


def _check_clusters(hub: HubLog, submitted: DispatchSubmitted) -> None:
    there = [cluster for cluster, _ in hub.state.present()]
    for cluster in submitted.clusters:
        if cluster not in there:
            raise ConfigurationError(
                f"cluster {cluster}: is not registered{did_you_mean(cluster, there)}; there are: "
                f"{', '.join(there) or '-'}"
            )
    if not there:
        raise ConfigurationError("the hub has no cluster; register one: `kai cluster add`")
