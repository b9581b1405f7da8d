"""Submission and withdrawal of dispatches, shared by `kai submit` and the hub's HTTP routes.

Both are idempotent by the dispatch's name: a repeated request changes nothing, so a client repeats a request that got
no answer.

A dispatch is read from manifests: its queue, and the total requests of its pods.

Access to the hub's log for operators and submitters: reading, appending, and choices computed again from offers.
"""

import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from uuid import uuid4

import msgspec

from kaicore.analysis.trial.simulation import Located
from kaicore.analysis.trial.submission.submitted_world import submit_objects
from kaicore.errors import ConfigurationError, Conflict, InvalidObject, StaleExpectation, UnknownSubject
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.ledger.log.snapshots import folded_hub, restored_hub
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import NewEvent, Unit, derived_id
from kaicore.rules.events.payloads import DispatchGiven, DispatchSubmitted, DispatchWithdrawn, HubPayload
from kaicore.rules.hub.choosing import choose
from kaicore.rules.hub.hub_state import ENDED, HUB, DispatchEntry, DispatchStage, HubState, dispatch_stream
from kaicore.rules.model.quantity import PODS
from kaicore.rules.queues.tree import counted
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.fork import CopiedState
from kaicore.spelling import did_you_mean

_PAGE = 2000


class ChoiceReplay(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The order of the hub's choices (`differences`: one line for each that came out otherwise)."""

    cluster: str
    choices: int
    differences: list[str]


async def replay_choices(log: EventLog) -> ChoiceReplay:
    """Choose again for every dispatch that was given to a cluster, and compare."""
    choices, differences, after = 0, [], 0
    where = Filter(types=(DispatchGiven.__name__,))
    while page := await log.read(HUB, after=after, limit=_PAGE, where=where):
        for event in page:
            after = event.position
            given = decode_payload(event)
            if not isinstance(given, DispatchGiven):
                continue
            choices += 1
            again = choose(given.offers)
            if again is None or again.cluster != given.cluster:
                differences.append(
                    f"position {event.position}: dispatch {given.dispatch}: given to {given.cluster}, chosen again: "
                    f"{again.cluster if again is not None else 'none'}"
                )
    return ChoiceReplay(cluster=HUB, choices=choices, differences=differences)


#: Who appends where nobody else is named: whoever runs `kai`.
OPERATOR = "kai"


class HubLog:
    """The hub's log, and its state at the log's end."""

    def __init__(self, log: EventLog) -> None:
        """Args: log: of the hub and of all clusters."""
        self.log = log
        self.state = HubState()

    async def refresh(self) -> HubState:
        """Fold to the log's end."""
        if not self.state.position:
            self.state = await restored_hub(self.log)
        return await folded_hub(self.log, self.state)

    async def append(self, stream: str, payload: HubPayload, *, subject: str) -> None:
        """Append an operator's decision to a stream, if nobody has changed that since it was read.

        Raises:
            ConfigurationError: somebody has.
            LogUnavailable: it is not known whether it was appended.
        """
        if not await self.try_append(stream, payload, subject=subject):
            raise ConfigurationError(f"{subject}: was changed by somebody else just now; look again")

    async def try_append(self, stream: str, payload: HubPayload, *, subject: str, actor: str = OPERATOR) -> bool:
        """Append an actor's decision to a stream; return False if somebody has changed that since it was read.

        Raises LogUnavailable: it is not known whether it was appended.
        """
        version = self.state.versions.get(stream, 0)
        event = NewEvent(
            id=derived_id(HUB, stream, str(version), uuid4().hex),
            stream=stream,
            payload=payload,
            actor=actor,
            occurred_at=time.time_ns() // 1000,
            subject=subject,
            correlation=stream,
        )
        try:
            await self.log.append(HUB, [Unit((event,))], expect={stream: version})
        except StaleExpectation:
            return False
        await self.refresh()
        return True


@asynccontextmanager
async def hub_of(log: EventLog) -> AsyncIterator[HubLog]:
    """Yield the hub's log, folded to its end."""
    hub = HubLog(log)
    await hub.refresh()
    yield hub


#: The binder carries out this owner's decisions, and asks the hub before the first one.
_SCHEDULER = EngineConfig().scheduler_name


def read_dispatch(
    name: str, objects: Sequence[Located], *, clusters: Sequence[str] = (), data: Sequence[str] = ()
) -> DispatchSubmitted:
    """Return the dispatch that manifests are.

    Raises InvalidObject: an object makes no sense or has no name, there are no pods among them, or they are of several
    queues or for another scheduler.

    Args:
        objects: in order of creation, with apiVersion and kind.
        clusters: that it may run in; none for any.
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
    demand: Counter[str] = Counter()
    for entry in entries:
        demand.update({resource: amount for resource, amount in counted(entry.requests).items() if resource != PODS})
        if (share := entry.pod.gpu_share) is not None:
            # How much of a GPU some MiB are depends on the cluster, so they stay MiB.
            demand.update(share.waiting)
    return DispatchSubmitted(
        dispatch=name,
        manifests=msgspec.json.encode([item.object for item in objects]).decode(),
        queue=queues[0],
        demand=dict(demand),
        clusters=tuple(sorted(clusters)),
        data=tuple(sorted(data)),
    )


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
