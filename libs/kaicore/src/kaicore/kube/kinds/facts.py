"""Conversion of object changes into facts: which changes are new, what is recorded of them, and under which ids.

A change is new when it differs from the last fact of its object in more than the resourceVersion. For that comparison a
digest of the last fact is kept for every object; it is rebuilt from the log.

Ids are derived from cluster, event type, uid, resourceVersion and digest, so a repeated append of a fact finds the
first one. The digest is part of the id because a newer program may read more from the same version of an object.
"""

from hashlib import blake2b
from typing import NamedTuple
from uuid import UUID

import msgspec

from kaicore.errors import InvalidObject, KaiError, Lost, unheard
from kaicore.kube.api.reflector_core import Change, ObjectGone, ObjectKey, ObjectRefused, ObjectSeen
from kaicore.kube.kinds.kind import Kind, Model, without_version
from kaicore.kube.kinds.table import KINDS, subject_of_fact
from kaicore.kube.normalize.fields import changed_at
from kaicore.kube.wire.resources import ObjectT
from kaicore.rules.events.envelope import NewEvent, Unit, derived_id
from kaicore.rules.events.observation import charging
from kaicore.rules.events.payloads import Payload, PodRejected, TopologyDeleted
from kaicore.rules.model.node import NodeTopology
from kaicore.rules.model.pod import Pod, is_kubelet_rejection
from kaicore.rules.objects.wire import ObjectMeta

ACTOR = "watcher"

#: The API server's stamps are cut to the second: within this, our own clock tells the time of a change better.
_STAMP_US = 2_000_000

_encoder = msgspec.msgpack.Encoder(order="deterministic")


class KnownFact(NamedTuple):
    """The last fact about an object that is there.

    Attributes:
        rejected: a pod with a recorded refusal by a kubelet.
        node: on which a pod that has not ended is; empty if there is none.
        lasting: of a topology: digest over all but what the exporter saw free; of a pod on a node: what it
            asks for.
    """

    uid: str
    digest: bytes
    rejected: bool = False
    node: str = ""
    lasting: bytes = b""


def known_fact(model: Model) -> KnownFact:
    """Return what is to be known of a fact."""
    digest = _digest(without_version(model))
    if isinstance(model, Pod):
        node = "" if model.finished else model.node_name
        asked = _digest_of_requests(model) if node else b""
        return KnownFact(model.uid, digest, is_kubelet_rejection(model), node, asked)
    return KnownFact(model.uid, digest, lasting=_digest(model.lasting()) if isinstance(model, NodeTopology) else b"")


def _digest(model: Model) -> bytes:
    return blake2b(_encoder.encode(model), digest_size=16).digest()


def _digest_of_requests(pod: Pod) -> bytes:
    asked = [[item.requests for item in pod.containers], pod.pod_resources]
    return blake2b(_encoder.encode(asked), digest_size=8).digest()


class _About(NamedTuple):
    """The common fields of a unit's events."""

    stream: str
    subject: str
    occurred_at: int


class Facts:
    """A watcher's knowledge of its cluster's objects: the last fact of each object that is there."""

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster
        #: Of the log, up to which it is known.
        self.position = 0
        self.by_kind: dict[str, dict[ObjectKey, KnownFact]] = {kind.name: {} for kind in KINDS}
        #: When the version of an object that was seen last was written, as far as it says; by uid.
        self._stamps: dict[str, int] = {}
        self._arrivals: dict[str, str] = {}

    def uids(self, kind: str) -> dict[ObjectKey, str]:
        """Return the uids of the objects of a kind that are believed to be there."""
        return {key: fact.uid for key, fact in self.by_kind[kind].items()}

    def take_arrivals(self) -> dict[str, str]:
        """Return the node of each pod, by uid, that facts brought to a node since the last call.

        Where that was not decided in the log, the pod's fact charges the node (`kaicore.rules.events.observation`).
        """
        arrivals, self._arrivals = self._arrivals, {}
        return arrivals

    def recall(self, payload: Payload) -> None:
        """Take in a fact from the log."""
        subject = subject_of_fact(payload)
        if subject is None:
            return
        kind, key, model = subject
        if model is not None:
            self.by_kind[kind][key] = known_fact(model)
            return
        fact = self.by_kind[kind].get(key)
        # A topology's end names no uid.
        if fact is not None and getattr(payload, "uid", fact.uid) == fact.uid:
            del self.by_kind[kind][key]

    def is_current(self, unit: Unit) -> bool:
        """True if a unit says the same of its object as is known now."""
        subject = subject_of_fact(unit.events[0].payload)
        if subject is None:
            return False
        kind, key, model = subject
        return self.by_kind[kind].get(key) == (None if model is None else known_fact(model))

    def translate(self, kind: Kind[ObjectT], change: Change[ObjectT], *, now: int, lost: Lost = unheard) -> Unit | None:
        """Turn a change into the unit that records it; None when it is no news.

        Raises InvalidObject: the object says something impossible; what was known of it stands.

        Args:
            now: microseconds since the epoch.
            lost: is called with each part of the object that makes no sense and is left out.
        """
        match change:
            case ObjectSeen(wire):
                return self._seen(kind, wire, now, lost)
            case ObjectGone():
                return self._gone(kind, change, now)
            case ObjectRefused(error):
                raise error

    def _seen(self, kind: Kind[ObjectT], wire: ObjectT, now: int, lost: Lost) -> Unit | None:
        meta = wire.metadata
        key = ObjectKey(meta.namespace, meta.name)
        try:
            model = kind.normalize(wire, lost)
            fact = known_fact(model)
        except (KaiError, MemoryError):
            raise
        except Exception as error:
            # A value that nobody foresaw costs its object, and not the watcher.
            raise InvalidObject(f"{kind.name} {_subject(key)}", "object", type(error).__name__, str(error)) from error
        before = self.by_kind[kind.name].get(key)
        occurred_at = self._occurred_at(meta, now)
        if fact == before:
            return None
        self.by_kind[kind.name][key] = fact
        source = (meta.uid, meta.resource_version, fact.digest.hex())
        about = _About(kind.stream(key, meta.uid), _subject(key), occurred_at)
        events = [self._event(kind.observed(model), source, about=about)]
        newly_rejected = fact.rejected and not (before is not None and before.uid == fact.uid and before.rejected)
        if newly_rejected and isinstance(model, Pod):
            refusal = PodRejected(
                uid=model.uid,
                namespace=model.namespace,
                name=model.name,
                node=model.node_name,
                reason=model.reason,
                message=model.message,
            )
            events.append(self._event(refusal, source, about=about, cause=events[0].id))
        unit = Unit(tuple(events))
        if isinstance(model, NodeTopology) and (before is None or before.lasting != fact.lasting):
            return charging(unit, model.node)
        if fact.node and (before is None or (before.uid, before.node) != (fact.uid, fact.node)):
            self._arrivals[fact.uid] = fact.node
        elif fact.node and before is not None and before.lasting not in (b"", fact.lasting):
            # Resized in place: a decision that was taken without it must not be appended after it.
            return charging(unit, fact.node, pods=(fact.uid,))
        return unit

    def _gone(self, kind: Kind[ObjectT], change: ObjectGone, now: int) -> Unit | None:
        before = self.by_kind[kind.name].get(change.key)
        if before is None or before.uid != change.uid:
            return None
        del self.by_kind[kind.name][change.key]
        self._stamps.pop(change.uid, None)
        about = _About(kind.stream(change.key, change.uid), _subject(change.key), now)
        payload = kind.gone(change.key, change.uid)
        unit = Unit((self._event(payload, (change.uid, change.resource_version), about=about),))
        return charging(unit, payload.node) if isinstance(payload, TopologyDeleted) else unit

    def _occurred_at(self, meta: ObjectMeta, now: int) -> int:
        """Return when a version was written: by the API server's stamp, or by our clock where that tells it better.

        A change under the stamp of the version before was not stamped: bindings, evictions and deletions are not.
        """
        stamp = changed_at(meta)
        unstamped = self._stamps.get(meta.uid) == stamp
        self._stamps[meta.uid] = stamp
        return stamp if 0 < stamp < now - _STAMP_US and not unstamped else now

    def _event(
        self, payload: Payload, source: tuple[str, ...], *, about: _About, cause: UUID | None = None
    ) -> NewEvent:
        return NewEvent(
            id=derived_id(self.cluster, type(payload).__name__, *source),
            stream=about.stream,
            payload=payload,
            actor=ACTOR,
            occurred_at=about.occurred_at,
            subject=about.subject,
            cause=cause,
        )


def restated(unit: Unit, *, position: int) -> Unit:
    """Return a unit under new ids, for a fact that is true again: an etcd was restored from a backup.

    Args:
        unit: its ids are in the log from long ago.
        position: of the log at which it is repeated.
    """
    renamed = {event.id: derived_id(str(event.id), str(position)) for event in unit.events}
    return Unit(
        tuple(
            msgspec.structs.replace(
                event,
                id=renamed[event.id],
                cause=None if event.cause is None else renamed.get(event.cause, event.cause),
            )
            for event in unit.events
        )
    )


def _subject(key: ObjectKey) -> str:
    return f"{key.namespace}/{key.name}" if key.namespace else key.name
