"""Export of a range of a log into a file that can be read without the log, and without its names.

A slice without names replays like the original. Names of objects, values of labels and texts that people write are
replaced by pseudonyms: their places in the order of all names, for ties are broken in that order. A name that begins
with another one, `-` or `.`, keeps that beginning, for rules make names of others, and compare them. Sizes, times,
uids, keys of labels, resources and zones stay, and values that rules read under the schedulers' own keys.

Digests and keys of classes are over names. So each cycle is decided twice, with names and without. What was recorded
as it comes out with names, field by field, is recorded as it comes out without them; anything else keeps what was
recorded. So a difference remains one.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from kaicore.analysis.replay.log_states import events_of, last_kept, pages_of
from kaicore.analysis.replay.moments import Range, state_at
from kaicore.errors import ConfigurationError, CorruptLog, EventsRetired
from kaicore.ledger.log.chain import GENESIS, event_hash
from kaicore.ledger.log.files.reader import LogFile
from kaicore.ledger.log.files.writer import Header, LogFileWriter
from kaicore.ledger.log.port import EventLog, Filter, Head, Snapshot
from kaicore.ledger.log.seals.audit import Auditable
from kaicore.ledger.log.snapshots import take_state
from kaicore.rules.deciding.decide import Proposal, decide
from kaicore.rules.deciding.replay import about
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events.codec import decode_payload, encode_payload, names_in_logs
from kaicore.rules.events.envelope import Event
from kaicore.rules.events.erasure import is_of_schedulers
from kaicore.rules.events.payloads import ConfigRecorded, CycleCompleted, GpuOpened, Payload, payload_types
from kaicore.rules.groups.dialects.leader_worker_set import FIRST_WORKERS
from kaicore.rules.groups.dialects.ray import SUBMITTER
from kaicore.rules.state.cluster_state import ClusterState


async def export_log(
    log: EventLog, cluster: str, path: Path, wanted: Range, *, progress: Callable[[int, int], None] = lambda _, __: None
) -> Header:
    """Write a range of a log into a file, and return the file's header.

    A file that does not begin with event 1 has the state in it that a reader starts from.

    Args:
        path: of the file; one that is there is replaced once the new one is whole.
        progress: called with how far it is, and how far it will go, in positions.

    Raises:
        ConfigurationError: the file cannot be written, or the range ends before the state that is left was saved.
        CorruptLog: the log is broken; names the event.
        EventsRetired: months were retired, and no sound state was kept.
    """
    after = await _place(log, cluster, wanted.first - 1)
    last = await _place(log, cluster, wanted.last)
    (first,) = await _events(log, cluster, wanted.first)
    state = await _state(log, cluster, wanted)
    with LogFileWriter(path, cluster, after=after, first_hash=first.hash, last=last, state=state) as file:
        async for page in pages_of(log, cluster, after=after.position, upto=wanted.last):
            await asyncio.to_thread(file.add, page)
            progress(page[-1].position, wanted.last)
    with LogFile(path) as written:
        return written.header


async def _place(log: EventLog, cluster: str, position: int) -> Head:
    """Return the place of an event, also of the last one that has been retired."""
    if not position:
        return Head()
    if position == await log.retired(cluster):
        assert isinstance(log, Auditable)
        async with log.audit_view(cluster) as view:
            return Head.at((await view.seals())[-1])
    (event,) = await _events(log, cluster, position)
    return Head.at(event)


async def _events(log: EventLog, cluster: str, position: int) -> list[Event]:
    events = await log.read(cluster, after=position - 1, upto=position, limit=1)
    if not events:
        raise CorruptLog(f"cluster {cluster}: event {position} is missing")
    return events


async def _state(log: EventLog, cluster: str, wanted: Range) -> Snapshot | None:
    """Return what a reader of the range starts from.

    If the log's first months were retired, this is the kept state, to the byte.
    """
    position = wanted.first - 1
    if not position:
        return None
    if position > await log.retired(cluster):
        return take_state(await state_at(log, cluster, position))
    found = await last_kept(log, cluster)
    if found is None:
        raise EventsRetired(cluster, position)
    kept, _ = found
    if kept.position > wanted.last:
        raise ConfigurationError(
            f"cluster {cluster}: the first state that is left of its log is that at {kept.position}: "
            f"a range that ends with {wanted.last} has none to start from"
        )
    return kept


#: The cluster's name in a redacted slice.
REDACTED = "redacted"

#: Names that every cluster has.
_COMMON = frozenset({"default", "kube-system", "kube-public", "kube-node-lease", "kai-ledger"})
_COMMON |= {"kai-resource-reservation", "resource-reservation"}
#: Names that are words of rules as well: of resources, as queues have them, and of pod sets that dialects name.
_OF_RULES = frozenset({"cpu", "gpu", "memory", "pods", "storage", "leader", "workers", FIRST_WORKERS, SUBMITTER})
#: Replica types of Kubeflow: its objects write them with a capital, and its pods without.
_OF_RULES |= {cased for word in ("master", "worker", "launcher", "chief", "ps") for cased in (word, word.title())}
_COMMON_PREFIX = "system-"
#: Fields with names, and those with texts.
_NAMES = frozenset(
    {"name", "namespace", "node", "node_name", "nominated_node", "group", "queue", "parent", "container"}
)
_NAMES |= {"by", "nodes", "init", "service_account", "volume", "claim", "pool", "replicas", "subject", "work"}
_TEXTS = frozenset({"message", "image", "error"})
#: Fields with public keys or names: of resources, of zones, of the engine.
_PLAIN = frozenset({"zones", "allocatable", "capacity", "requests", "limits", "amount", "config", "resources"})
#: Fields with words of the rules, which may be names as well: a container may be called `init`.
_WORDS = frozenset({"kind", "phase", "operator", "effect", "qos", "policy", "scope", "provenance", "reason", "code"})
_WORDS |= {"resource", "zone", "mask", "strategy", "mode", "stage", "outcome", "preemption_policy"}
_LABELS = frozenset({"labels", "annotations", "node_selector", "match_labels", "node_labels"})
#: Labels of Kubernetes with places and kinds of an installation as values; and one of Ray's, made of names.
_PLACES = (
    *("topology.", "failure-domain.", "node.kubernetes.io/instance-type", "kubernetes.io/hostname"),
    "ray.io/identifier",
)
_WORD = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?")
_NUMBER = re.compile(r"-?[0-9.]+")
_PLAIN_VALUE = re.compile(rf"{_NUMBER.pattern}|true|false|[0-9a-f]{{8}}(-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}")
#: What is over names in what a cycle decides.
_OVER_NAMES = re.compile(rb'"(?:pod_class|config_digest|decisions_digest)":"[^"]*"')


def _named(document: Any, key: str = "") -> Iterator[str]:
    """Yield the names in an event's body."""
    if isinstance(document, dict):
        for name, value in document.items():
            if key in _LABELS and isinstance(value, str):
                read = is_of_schedulers(name) and not name.startswith(_PLACES)
                yield from () if read else (value,)
            elif name == "values" and not is_of_schedulers(str(document.get("key", ""))):
                yield from (one for one in value if isinstance(one, str))
            elif name not in _PLAIN:
                yield from _named(value, name)
    elif isinstance(document, list):
        for item in document:
            yield from _named(item, key)
    elif isinstance(document, str) and (key in _NAMES or key in _TEXTS):
        # `Job.batch/default/train` has the kind first, `default/train` a namespace.
        yield from document.split("/")[-2:] if key in _NAMES else (document,)
    elif isinstance(document, str) and key == "parts" and " " in document:
        # `Pod default/train` of a difference from the API server.
        yield from document.partition(" ")[2].split("/")
    elif isinstance(document, str) and key == "instance":
        yield from _WORD.findall(document)


@cache
def _fields() -> frozenset[str]:
    """Return the names of all fields of payloads, which are names of objects as well."""
    found, left = dict[type, set[str]](), list(msgspec.inspect.multi_type_info(payload_types()))
    while left:
        one: Any = left.pop()
        if isinstance(one, msgspec.inspect.StructType) and one.cls not in found:
            found[one.cls] = {field.encode_name for field in one.fields}
            left += [field.type for field in one.fields]
        left += [*getattr(one, "types", ()), *getattr(one, "item_types", ())]
        left += [getattr(one, name) for name in ("item_type", "value_type") if hasattr(one, name)]
    return frozenset().union(*found.values())


def _kept(name: str) -> bool:
    return name in _COMMON | _OF_RULES or name.startswith(_COMMON_PREFIX) or bool(_PLAIN_VALUE.fullmatch(name))


def _parts(name: str, names: Collection[str]) -> tuple[str, str, str] | None:
    """Return the longest of the names that a name begins with, the mark behind it, and the rest."""
    for end in range(len(name) - 2, 0, -1):
        if name[end] in "-." and (first := name[:end]) in names and (name[end] == "." or not _kept(first)):
            return first, name[end], name[end + 1 :]
    return None


@dataclass(frozen=True, slots=True)
class Pseudonyms:
    """The pseudonyms of names.

    Attributes:
        of: the pseudonym of each name.
        key: of the ids of events, which are digests over names.
    """

    of: dict[str, str]
    key: bytes

    @classmethod
    def for_names(cls, names: set[str], *, key: bytes) -> "Pseudonyms":
        """Return pseudonyms in the order of the names."""
        known, more, parts = set[str](), names, dict[str, tuple[str, str, str]]()
        while more:
            known |= more
            parts = {name: own for name in known if not _kept(name) and (own := _parts(name, known))}
            more = {rest for _, _, rest in parts.values()} - known
        pseudonyms, below = dict[str, str](), "a"
        for place, name in enumerate(sorted(known)):
            # A name between two that are kept stays between them: `default` begins what is between it and the next.
            if name in _COMMON | _OF_RULES or _NUMBER.fullmatch(name):
                below = name
            elif not _kept(name) and name not in parts:
                pseudonyms[name] = f"{below}0n{place:07d}"
        for name in sorted(parts, key=len):
            first, mark, rest = parts[name]
            pseudonyms[name] = pseudonyms.get(first, first) + mark + pseudonyms.get(rest, rest)
        # What is only a part of a name is a word as well.
        return cls({name: made for name, made in pseudonyms.items() if name in names}, key)

    def text(self, text: str) -> str:
        """Return a text with pseudonyms instead of names."""
        known = self.of.get(text)
        return known if known is not None else _WORD.sub(lambda word: self.of.get(word[0], word[0]), text)

    def document(self, document: Any, *, plain: bool = False) -> Any:
        """Return a body with pseudonyms instead of names."""
        if isinstance(document, dict):
            # The names of zones and resources stand in these, too, and they are no one's.
            return {
                key if plain or key in _PLAIN or key in _fields() else self.text(key): self.document(
                    value, plain=key in _PLAIN or (key in _WORDS and not (isinstance(value, str) and " " in value))
                )
                for key, value in document.items()
            }
        if isinstance(document, list):
            return [self.document(item, plain=plain) for item in document]
        return self.text(document) if isinstance(document, str) and not plain else document

    def id(self, one: UUID) -> UUID:
        """Return another id."""
        return UUID(bytes=sha256(self.key + one.bytes).digest()[:16])

    def envelope(self, event: Event) -> Event:
        """Return an event of which the envelope has no names."""
        return msgspec.structs.replace(
            event,
            cluster=REDACTED,
            id=self.id(event.id),
            stream=self.text(event.stream),
            subject=self.text(event.subject),
            actor=self.text(event.actor),
            cause=event.cause and self.id(event.cause),
            correlation=self.text(event.correlation),
        )


async def export_redacted(log: EventLog, cluster: str, path: Path, wanted: Range, *, key: bytes) -> tuple[Header, int]:
    """Write a slice without names into a file; all cycles from the log's begin on are decided for it.

    Args:
        key: secret; ids of events, which are digests over names, are digests of it, too.

    Returns:
        the file's header, and how many decisions come out otherwise without names, such as by a digest of a name.

    Raises:
        ConfigurationError: the file cannot be written.
        EventsRetired: the log does not begin with event 1.
        PolicyMismatch: a cycle was decided with policies.
    """
    if retired := await log.retired(cluster):
        raise EventsRetired(cluster, retired)
    names = {cluster}
    async for event in events_of(log, cluster, upto=wanted.last):
        names.update(_named(msgspec.json.decode(event.body)), _WORD.findall(event.actor.partition("/")[2]))
    run = _Redaction(cluster, Pseudonyms.for_names(names - {""}, key=key))
    known = Filter(types=names_in_logs((ConfigRecorded.__name__, CycleCompleted.__name__)))
    async for event in events_of(log, cluster, upto=wanted.last, where=known):
        run.enter(event)
    before, state, events = Head(), None, list[Event]()
    async for event in run.events(events_of(log, cluster, upto=wanted.last)):
        if event.position >= wanted.first:
            events.append(event)
        elif event.position == wanted.first - 1:
            before, state = Head.at(event), take_state(run.without)
    last = Head.at(events[-1])
    with LogFileWriter(path, REDACTED, after=before, first_hash=events[0].hash, last=last, state=state) as file:
        file.add(events)
    with LogFile(path) as written:
        return written.header, run.otherwise


#: What a cycle records with names and without, by type and what it is about.
_Pairs = dict[tuple[str, str], tuple[Payload, Payload]]


class _Redaction:
    """Folds and decides a log with its names and without."""

    def __init__(self, cluster: str, names: Pseudonyms) -> None:
        self._names = names
        self._with, self.without = ClusterState(cluster), ClusterState(REDACTED)
        self._configs: dict[str, tuple[EngineConfig, EngineConfig]] = {}
        self._due: dict[int, list[tuple[str, CycleCompleted]]] = {}
        self._decided: dict[str, _Pairs] = {}
        # The cycle of which the append goes by.
        self._appended: tuple[str, _Pairs] = "", {}
        self.otherwise = 0

    def enter(self, event: Event) -> None:
        """Take notice of a configuration, or of a cycle that is to be decided."""
        payload = decode_payload(event)
        if isinstance(payload, ConfigRecorded):
            both = (payload.config, self._names.document(payload.config))
            mine, theirs = (EngineConfig.recorded(document) for document in both)
            self._configs[payload.digest] = mine, theirs
        elif isinstance(payload, CycleCompleted):
            self._due.setdefault(payload.input_position, []).append((event.actor, payload))

    async def events(self, events: AsyncIterator[Event]) -> AsyncIterator[Event]:
        """Yield events without names, chained anew."""
        before = GENESIS
        self._decide()
        async for event in events:
            plain = self._redacted(event)
            plain = msgspec.structs.replace(plain, hash=event_hash(before, plain))
            before = plain.hash
            self._with.fold(event)
            self.without.fold(plain)
            self._decide()
            yield plain

    def _decide(self) -> None:
        for actor, cycle in self._due.pop(self._with.position, ()):
            mine, theirs = self._configs[cycle.config_digest]
            both = [
                decide(state, config, shard=shard, now=cycle.now, actor=who, policies_left_out=cycle.policies_left_out)
                for state, config, shard, who in (
                    (self._with, mine, cycle.shard, actor),
                    (self.without, theirs, self._names.text(cycle.shard), self._names.text(actor)),
                )
            ]
            pairs = self._decided[cycle.cycle] = {}
            first, second = (list(_payloads(proposal)) for proposal in both)
            self.otherwise += abs(len(first) - len(second))
            for one, other in zip(first, second, strict=False):
                pairs[about(one)] = one, other
                if isinstance(one, GpuOpened) and isinstance(other, GpuOpened):
                    # Both are derived from the node's name, and stand in what the API server says from then on.
                    self._names.of.update({one.group: other.group, one.name: other.name})
                said = self._names.document(msgspec.json.decode(encode_payload(one)))
                same = [_OVER_NAMES.sub(b"", msgspec.json.encode(said)), _OVER_NAMES.sub(b"", encode_payload(other))]
                self.otherwise += not isinstance(one, CycleCompleted) and same[0] != same[1]

    def _redacted(self, event: Event) -> Event:
        plain = self._names.envelope(event)
        payload = decode_payload(event)
        body = self._names.document(msgspec.json.decode(event.body))
        if isinstance(payload, ConfigRecorded):
            body["digest"] = self._configs[payload.digest][1].digest()
        if isinstance(payload, CycleCompleted):
            self._appended = payload.cycle, self._decided.pop(payload.cycle, {})
        cycle, decided = self._appended
        pair = decided.get(about(payload)) if decided and event.correlation == cycle else None
        if pair is not None:
            mine, theirs = pair
            came_out = msgspec.json.decode(encode_payload(theirs))
            for name in body.keys() & came_out.keys() & set(payload.__struct_fields__):
                if getattr(payload, name) == getattr(mine, name):
                    body[name] = came_out[name]
        return msgspec.structs.replace(plain, body=msgspec.Raw(msgspec.json.encode(body)))


def _payloads(proposal: Proposal) -> Iterator[Payload]:
    for unit in proposal.units:
        for new in unit.events:
            if not isinstance(new.payload, ConfigRecorded):
                yield new.payload
