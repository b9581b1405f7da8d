"""Audit of a cluster's log: whether its contents are unchanged since they were written.

Everything that the log itself can show is checked. No position is missing or there twice. Each event has the hash of
its contents and the event before it. Versions count each stream, and time does not go back. The rows beside the events
(head, stream versions, ids) agree with them. A role that can rewrite the whole database can rewrite all of that too;
against this help anchors, positions and hashes that were stored elsewhere.
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import msgspec

from kaicore.ledger.log.chain import erasure_mark, event_hash, mark_of
from kaicore.ledger.log.port import EventLog, Head, Seal
from kaicore.rules.events.envelope import Event
from kaicore.rules.events.payloads import FieldsErased

#: Events that a running service looks at between two other things that it has to do.
_PAGE = 200

#: Findings that are kept; more of them say nothing new.
MOST_FINDINGS = 20


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it was written (`position`: the event where it shows, or 0 where no event does)."""

    position: int
    problem: str

    def __str__(self) -> str:
        return f"event {self.position}: {self.problem}" if self.position else self.problem


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The result of verifying a cluster's log.

    Attributes:
        after: position of the last event that has been retired, 0 where none has; verified is what follows.
        events: how many events were verified.
        head: the end of the log, as the log says; worth writing down elsewhere, to be given as an anchor later.
        findings: what is broken, by position; the first `MOST_FINDINGS` of them.
        seals: of the retired months, in order.
        anchored: how many anchors were compared.
        unreachable: how many could not be, because their events are in retired months.
        erased: of how many events something was erased, as the log itself records.
    """

    cluster: str
    after: int
    events: int
    head: Head
    findings: tuple[Finding, ...]
    seals: tuple[Seal, ...] = ()
    anchored: int = 0
    unreachable: int = 0
    erased: int = 0

    @property
    def ok(self) -> bool:
        """True if nothing is broken."""
        return not self.findings

    @property
    def first_broken(self) -> int | None:
        """Position of the first event where something is broken; 0 where no event shows it, None when nothing is."""
        positions = [finding.position for finding in self.findings]
        return min((position for position in positions if position), default=0 if positions else None)

    def __str__(self) -> str:
        retired = f", events up to {self.after} retired and sealed" if self.after else ""
        what = f"cluster {self.cluster}: {self.events} events verified{retired}"
        if self.erased:
            what += f", of {self.erased} of them something was erased, as is recorded"
        if self.anchored or self.unreachable:
            what += f", {self.anchored} anchors compared"
        if self.unreachable:
            what += f", {self.unreachable} more lie in retired months"
        if self.ok:
            return f"{what}\nhead {self.head.position} {self.head.hash.hex()}"
        more = ["(further findings left out)"] if len(self.findings) == MOST_FINDINGS else []
        return "\n".join([f"{what}: BROKEN", *map(str, self.findings), *more])


@dataclass(frozen=True, slots=True)
class RecordedErasure:
    """The log's record of an erased event.

    Attributes:
        at: position of the `FieldsErased` that says it, the last one that does.
    """

    at: int
    mark: str


def recorded_erasures(records: Iterable[tuple[int, bytes]]) -> dict[int, RecordedErasure]:
    """Return what was erased, by position of the event.

    Args:
        records: positions and bodies of all `FieldsErased`, in order; one that is none says nothing, and is found
            broken by its hash.
    """
    erased: dict[int, RecordedErasure] = {}
    for at, body in records:
        with suppress(msgspec.MsgspecError):
            record = msgspec.json.decode(body, type=FieldsErased)
            erased.update({one.position: RecordedErasure(at, one.mark) for one in record.events if one.position < at})
    return erased


class AuditView(Protocol):
    """One state of a cluster's log, raw: nothing in it has been checked."""

    async def head(self) -> Head:
        """Return the head as recorded."""

    async def seals(self) -> list[Seal]:
        """Return the seals in order of position."""

    async def erasures(self) -> dict[int, RecordedErasure]:
        """Return what was erased, by position of the event."""

    @property
    def whole(self) -> bool:
        """True if it reaches the log's end, so that it records everything that was ever erased."""

    def pages(self) -> AsyncIterator[list[Event]]:
        """Yield all events in order of position, some at a time."""

    async def differences(self, *, after: int, versions: Mapping[str, tuple[int, int]]) -> list[Finding]:
        """Return where ids and stream versions disagree with the events.

        Args:
            after: the last position that has been retired.
            versions: by stream, the version and position of its last event.
        """


@runtime_checkable
class Auditable(Protocol):
    """A log that can show itself raw."""

    def audit_view(self, cluster: str) -> AbstractAsyncContextManager[AuditView]:
        """Give a view that does not change while it is looked at."""


async def verify(log: EventLog, cluster: str, *, anchors: Mapping[int, bytes] | None = None) -> AuditReport:
    """Verify a cluster's log from its first event, or from the last seal.

    Raises TypeError: the log is of a kind that cannot be audited.

    Args:
        anchors: hashes by position, from reports of earlier audits that were kept out of the database's reach.
    """
    if not isinstance(log, Auditable):
        raise TypeError(f"a {type(log).__name__} cannot be audited")
    async with log.audit_view(cluster) as view:
        return await _verify(view, cluster, dict(anchors or {}))


async def verify_since(log: EventLog, cluster: str, since: Head, head: Head) -> Finding | None:
    """Tell whether the chain still leads from where it once stood to where it is now; what is new is read, no more.

    Args:
        since: where it stood, as somebody wrote it down; not before the last retired event.
        head: its present place by the log's account.

    Returns:
        The first thing that is broken; None where nothing is.

    Raises:
        EventsRetired: `since` is before the last retired event.
        CorruptLog: an event is missing or there twice.
    """
    if head.position < since.position:
        return Finding(head.position + 1, f"is missing; the log reached to event {since.position}")
    # That what was erased is recorded, an audit of the whole log says.
    chain = _Chain(since, {}, whole=False)
    while chain.last.position < head.position:
        page = await log.read(cluster, after=chain.last.position, upto=head.position, limit=_PAGE)
        for event in page:
            for finding in chain.check_hash(event):
                return finding
            chain.last = Head.at(event)
        if not page:
            return Finding(chain.last.position + 1, f"is missing; the head of the log is {head.position}")
    if chain.last.hash != head.hash:
        return Finding(head.position, "is not what the head of the log says")
    return None


async def _verify(view: AuditView, cluster: str, anchors: dict[int, bytes]) -> AuditReport:
    head = await view.head()
    seals = await view.seals()
    given = len(anchors)
    findings = list(_check_seals(seals, anchors))
    start = Head.at(seals[-1]) if seals else Head()
    chain = _Chain(start, anchors, await view.erasures(), whole=view.whole)
    events = 0
    async for page in view.pages():
        events += len(page)
        for event in page:
            findings += chain.check(event)
        if len(findings) > MOST_FINDINGS:
            # The rest of the log would have to be read for findings that are not kept.
            break
    else:
        findings += chain.check_end(head)
        findings += await view.differences(after=start.position, versions=chain.versions)
    findings.sort(key=lambda finding: finding.position or head.position + 1)
    unreachable = sum(position <= start.position for position in anchors)
    return AuditReport(
        cluster,
        start.position,
        events,
        head,
        tuple(findings[:MOST_FINDINGS]),
        tuple(seals),
        anchored=given - len(anchors),
        unreachable=unreachable,
        erased=chain.erased,
    )


def _check_seals(seals: list[Seal], anchors: dict[int, bytes]) -> Iterator[Finding]:
    expected = 1
    for seal in seals:
        if anchors.pop(seal.position, seal.hash) != seal.hash:
            yield Finding(seal.position, f"the hash in the seal of {seal.detached} is not that of the anchor")
        if seal.first_position != expected:
            yield Finding(seal.first_position, f"the seal of {seal.detached} does not begin at {expected}")
        expected = seal.position + 1


@dataclass(slots=True)
class _Chain:
    """Checks events one by one; after something broken it goes on from there, so that each break is found by itself."""

    last: Head
    anchors: dict[int, bytes]
    #: What was erased, by position, as the log records it.
    erasures: Mapping[int, RecordedErasure] = field(default_factory=dict)
    #: Whether all that was erased is recorded there.
    whole: bool = True
    #: Of how many events something was erased.
    erased: int = 0
    #: By stream: version and position of its last event.
    versions: dict[str, tuple[int, int]] = field(default_factory=dict)
    #: Hashes that the next event may be chained to: none after a gap, two where hash and contents disagreed.
    _before: tuple[bytes, ...] = ()
    #: Position of the last event that an anchor vouches for.
    _agreed: int = 0
    #: Whether streams may have had events before the first one that is left.
    _retired: bool = False

    def __post_init__(self) -> None:
        self._before = (self.last.hash,)
        self._retired = self.last.position > 0

    def check(self, event: Event) -> Iterator[Finding]:
        expected = self.last.position + 1
        if event.position > expected:
            missing = f"is missing; the next event is {event.position}"
            yield Finding(expected, missing)
            self._before = ()
        elif event.position < expected:
            yield Finding(event.position, "is there twice, or was retired")
            self._before = ()
        yield from self.check_hash(event)
        if event.recorded_at < self.last.recorded_at:
            yield Finding(event.position, f"was recorded before event {self.last.position}")
        yield from self._check_version(event)
        self.last = Head.at(event)

    def check_hash(self, event: Event) -> Iterator[Finding]:
        erasure = self.erasures.get(event.position)
        if mark := mark_of(event):
            self.erased += 1
            yield from self._check_erased(event, mark, erasure)
        elif erasure is not None:
            yield Finding(event.position, f"event {erasure.at} says that something was erased of it, and nothing was")
        computed = [event_hash(before, event) for before in self._before]
        if self._before and not mark and event.hash not in computed:
            yield Finding(event.position, "its hash is not that of its contents after the event before it")
        # Either the contents were changed and the next event is chained to the hash, or it is the other way round.
        self._before = (event.hash, *(one for one in computed if one != event.hash and not mark))
        anchor = self.anchors.pop(event.position, None)
        if anchor is not None and anchor != event.hash:
            yield Finding(
                event.position,
                "its hash is not that of the anchor: the log was rewritten somewhere "
                f"from event {self._agreed + 1} to this one",
            )
        elif anchor is not None:
            self._agreed = event.position

    def _check_erased(self, event: Event, mark: str, erasure: RecordedErasure | None) -> Iterator[Finding]:
        if self._before and mark not in [erasure_mark(before, event) for before in self._before]:
            yield Finding(event.position, "something was erased of it, and what is left is not what was left then")
        elif erasure is None and self.whole:
            yield Finding(event.position, "something was erased of it, and no event says so")
        elif erasure is not None and erasure.mark != mark:
            yield Finding(event.position, f"something was erased of it, and not what event {erasure.at} says")

    def _check_version(self, event: Event) -> Iterator[Finding]:
        if event.stream in self.versions or not self._retired:
            expected = self.versions.get(event.stream, (0, 0))[0] + 1
            if event.version != expected:
                yield Finding(event.position, f"has version {event.version} of stream {event.stream}, not {expected}")
        self.versions[event.stream] = (event.version, event.position)

    def check_end(self, head: Head) -> Iterator[Finding]:
        if head.position > self.last.position:
            yield Finding(self.last.position + 1, f"is missing; the head of the log is {head.position}")
        elif head != self.last:
            yield Finding(self.last.position, "is not what the head of the log says")
        for position in sorted(self.anchors):
            if position > self.last.position:
                yield Finding(
                    position,
                    f"is missing; there is an anchor for it, and the log ends at {self.last.position}: it was cut off",
                )
