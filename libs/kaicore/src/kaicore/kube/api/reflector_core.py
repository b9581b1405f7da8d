"""The rules for following all objects of a resource: bytes of lists and watches in, changes out, without I/O.

A resource is listed page by page, then watched from the list's resourceVersion. A watch that breaks is resumed at the
same resourceVersion. When the server no longer has the next changes (410), or a watch fails again and again, the
resource is listed anew. Objects that are known but not listed are reported as gone, so no deletion is missed for good.

Nothing is accepted twice. Three kinds of events are dropped: of an object that is known to be newer, of an object that
was reported as gone, and from before the last list. ResourceVersions that are numbers are compared as numbers, because
an API server promises that order; others are compared only for equality. A complete list is always accepted: it brings
in the state of a restored or rebuilt cluster.

A check lists a resource between two watches, and compares: every object that a watch must have brought is handed on
once more, marked. Others come with the next watch, which begins where the last one ended. An object that is known and
not listed has been missed if that watch brings no deletion.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, NamedTuple

import msgspec

from kaicore.backoff import backoff, jittered
from kaicore.errors import ApiStatus, ClusterError, ClusterUnavailable, InvalidObject
from kaicore.kube.api.failures import Status
from kaicore.kube.wire.objects import Identified, Identity, ObjectList, WatchEvent
from kaicore.kube.wire.resources import ObjectT, Resource, decoded, identity
from kaicore.rules.objects.wire import ObjectMeta

_list_decoder = msgspec.json.Decoder(ObjectList)
_event_decoder = msgspec.json.Decoder(WatchEvent)
_bookmark_decoder = msgspec.json.Decoder(Identified)
_status_decoder = msgspec.json.Decoder(Status)

#: Longest wish of a server to be left alone that is granted, seconds.
MAX_RETRY_AFTER_S = 60

#: A watch that fails this often without bringing anything gives way to a list.
WATCH_FAILURES = 8

#: A watch that lasted this long has worked, even if it brought nothing.
WORKED_S = 10.0

#: How many uids of gone objects are remembered, against events that come late.
MAX_BURIED = 16_384

_GONE = 410


class ObjectKey(NamedTuple):
    """An object's place; `namespace` is empty for objects without one."""

    namespace: str
    name: str


class KnownObject(NamedTuple):
    """The known version at a place; an empty version is older than every other."""

    uid: str
    resource_version: str = ""


@dataclass(frozen=True, slots=True)
class ObjectSeen(Generic[ObjectT]):
    """An object is there, new or perhaps changed (`again`: a check found it, and it was to be known already)."""

    object: ObjectT
    again: bool = False


@dataclass(frozen=True, slots=True)
class ObjectGone:
    """An object is there no more.

    Attributes:
        resource_version: of the deletion or, where that was missed, the last one known.
        missed: found by a list, or by another object in its place.
        again: a check found it, and it was to be known already.
    """

    key: ObjectKey
    uid: str
    resource_version: str
    missed: bool = False
    again: bool = False


@dataclass(frozen=True, slots=True)
class ObjectRefused:
    """An object is there that cannot be decoded; what was known of it before stands.

    Attributes:
        uid: and version; both empty when it does not even say that.
    """

    error: InvalidObject
    uid: str = ""
    resource_version: str = ""


Change = ObjectSeen[ObjectT] | ObjectGone | ObjectRefused


@dataclass(frozen=True, slots=True)
class ListPage:
    """The next request: a page of a list; the first page has no token."""

    continue_token: str = ""


@dataclass(frozen=True, slots=True)
class Watch:
    """The next request: the changes after a version."""

    resource_version: str


class Backoff(NamedTuple):
    """Seconds to wait after the first failure, and at most; doubled with each further one."""

    first_s: float = 0.25
    most_s: float = 15.0


class Relist(StrEnum):
    """The reason why a list was begun."""

    START = "start"
    EXPIRED = "expired"
    WATCH_FAILED = "watch-failed"
    CHECK = "check"


class ReflectorCore(Generic[ObjectT]):
    """Decides what to ask the API server for, and what its answers mean.

    Ask for `request` after `delay_s`, then report with `take_page`, `take_lines`, `failed` or `ended`.
    """

    def __init__(
        self,
        resource: Resource[ObjectT],
        *,
        known_uids: Mapping[ObjectKey, str] | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        """Args:
        known_uids: uids of the objects that are believed to be there, from an earlier life.
        backoff: how long to leave a server alone that fails.
        """
        self.resource = resource
        self._backoff = backoff or Backoff()
        #: What is there, as far as we know.
        self.objects = {key: KnownObject(uid) for key, uid in (known_uids or {}).items()}
        self.request: ListPage | Watch = ListPage()
        #: A complete list was taken.
        self.synced = False
        #: Why the list under way, or the last one, was begun.
        self.relisting = Relist.START
        #: What the last request failed of.
        self.last_error = ClusterError("nothing has failed")
        #: Requests that failed since a watch last brought something.
        self.failures = 0
        self._failed = False
        # The watch under way has brought nothing yet.
        self._quiet = True
        self._watch_failures = 0
        self._retry_after_s = 0
        self._listed: set[ObjectKey] = set()
        self._list_version = ""
        self._list_complete = True
        self._buried: dict[str, None] = {}
        #: A check is to come before the next watch.
        self.to_check = False
        # Where the watch before a check ended; and what the check did not list, until a watch is past its list.
        self._watched = ""
        self._missing: dict[ObjectKey, str] = {}
        self._missing_at = ""

    @property
    def watching(self) -> bool:
        """True if the present watch, if any, is to be read on."""
        return isinstance(self.request, Watch) and not self._failed

    def delay_s(self, jitter: float) -> float:
        """Return how long to wait before the next request (`jitter`: 0 to 1, so that not all come back at once)."""
        if not self._failed:
            return 0.0
        delay_s = backoff(self.failures, first=self._backoff.first_s, most=self._backoff.most_s)
        return max(jittered(delay_s, jitter), float(self._retry_after_s))

    def begin_check(self) -> None:
        """List to compare, if a check is to come."""
        if self.to_check and isinstance(self.request, Watch):
            self.to_check, self._watched = False, self.request.resource_version
            self._relist(Relist.CHECK)

    def take_page(self, data: bytes) -> list[Change[ObjectT]]:
        """Take a page of a list. Raises ClusterUnavailable: it is no list; report it with `failed`."""
        try:
            page = decoded(_list_decoder, data)
        except msgspec.DecodeError as error:
            raise ClusterUnavailable(f"{self.resource.path}: not a list: {error}") from error
        self._failed = False
        if self.request == ListPage():
            self._listed.clear()
            self._list_complete = True
            self._missing.clear()
            if self.relisting is Relist.CHECK:
                self._missing_at = page.metadata.resource_version
            else:
                self._list_version = page.metadata.resource_version
        changes: list[Change[ObjectT]] = []
        for item in page.items or ():
            self._take_listed(item, changes)
        if page.metadata.continue_:
            self.request = ListPage(page.metadata.continue_)
        else:
            check = self.relisting is Relist.CHECK
            for key in [key for key in self.objects if key not in self._listed] if self._list_complete else ():
                if check:
                    self._missing[key] = self.objects[key].uid
                else:
                    self._bury(key, changes)
            self._listed.clear()
            self.synced = True
            self._watch_failures = 0
            self.request = Watch(self._watched if check else self._list_version)
            self._take_missing(changes)
        return changes

    def _take_missing(self, changes: list[Change[ObjectT]]) -> None:
        """Report what a check did not list as gone, once the watch is past that list."""
        if not self._missing or not isinstance(self.request, Watch):
            return
        if _is_news(self._missing_at, self.request.resource_version):
            return
        for key, uid in self._missing.items():
            known = self.objects.get(key)
            if known is not None and known.uid == uid:
                self._bury(key, changes, again=True)
        self._missing.clear()

    def take_lines(self, lines: Sequence[bytes]) -> list[Change[ObjectT]]:
        """Take lines of a watch; those after an error are not looked at (see `watching`)."""
        changes: list[Change[ObjectT]] = []
        for line in lines:
            try:
                event = decoded(_event_decoder, line)
            except msgspec.DecodeError as error:
                self.failed(ClusterUnavailable(f"{self.resource.path}: not a watch event: {error}"))
                break
            if event.type == "ERROR":
                self._take_error(event.object)
                break
            self._worked()
            self._take_event(event, changes)
            self._take_missing(changes)
        return changes

    def failed(self, error: ClusterError) -> None:
        """Take note that the request failed or that the watch broke."""
        wish_s = error.retry_after_s if isinstance(error, ClusterUnavailable) else None
        self._retry_after_s = min(wish_s or 0, MAX_RETRY_AFTER_S)
        self.last_error = error
        self._fail()
        if isinstance(error, ApiStatus) and error.code == _GONE:
            self._relist(Relist.EXPIRED)
        elif self._watch_failures >= WATCH_FAILURES:
            self._relist(Relist.WATCH_FAILED)

    def ended(self, lasted_s: float) -> None:
        """Take note that the server ended the watch in order, as it does now and then.

        Args:
            lasted_s: how long the watch lasted; a short one that brought nothing has failed.
        """
        if lasted_s >= WORKED_S:
            self._worked()
        elif self._quiet:
            self._fail()
        self._quiet = True

    def _fail(self) -> None:
        self._failed = self._quiet = True
        self.failures += 1
        self._watch_failures += isinstance(self.request, Watch)

    def _worked(self) -> None:
        self._failed = self._quiet = False
        self.failures = self._watch_failures = self._retry_after_s = 0

    def _relist(self, why: Relist) -> None:
        self.request, self.relisting = ListPage(), why

    def _take_error(self, data: msgspec.Raw) -> None:
        try:
            status = _status_decoder.decode(data)
        except msgspec.DecodeError as error:
            self.failed(ClusterUnavailable(f"{self.resource.path}: not a Status: {error}"))
            return
        message = f"{self.resource.path}: watch: {status.message or 'no message'}"
        if status.code == _GONE:
            self.failed(ApiStatus(_GONE, status.reason or "", message))
        else:
            after_s = status.details.retry_after_seconds if status.details is not None else None
            self.failed(ClusterUnavailable(message, retry_after_s=after_s))

    def _take_listed(self, item: msgspec.Raw, changes: list[Change[ObjectT]]) -> None:
        read = self._decode(item, changes)
        if read is None:
            # It may be any of the known ones, so this list cannot prove that one of them is gone.
            self._list_complete = False
            return
        meta, change = read
        key = ObjectKey(meta.namespace, meta.name)
        self._listed.add(key)
        before = self.objects.get(key)
        if self.relisting is Relist.CHECK:
            # A later version comes with the next watch, and of an older one more is known.
            newer = before is not None and before.resource_version and meta.resource_version != before.resource_version
            if _is_news(meta.resource_version, self._watched) or (
                newer and before is not None and not _is_news(meta.resource_version, before.resource_version)
            ):
                return
            if isinstance(change, ObjectSeen):
                change = ObjectSeen(change.object, again=True)
        elif before is not None and before.uid == meta.uid and before.resource_version == meta.resource_version:
            return
        if before is not None and before.uid != meta.uid:
            self._bury(key, changes, again=self.relisting is Relist.CHECK)
        self._buried.pop(meta.uid, None)
        self.objects[key] = KnownObject(meta.uid, meta.resource_version)
        changes.append(change)

    def _take_event(self, event: WatchEvent, changes: list[Change[ObjectT]]) -> None:
        if event.type == "BOOKMARK":
            mark = _bookmark_version(event.object)
            if mark:
                self.request = Watch(mark)
            return
        if event.type not in ("ADDED", "MODIFIED", "DELETED"):
            return
        read = self._decode(event.object, changes)
        if read is None:
            return
        meta, change = read
        self._resume_after(meta.resource_version)
        key = ObjectKey(meta.namespace, meta.name)
        before = self.objects.get(key)
        if event.type == "DELETED":
            if before is not None and before.uid == meta.uid:
                self._bury(key, changes, version=meta.resource_version)
            return
        if meta.uid in self._buried or not _is_news(meta.resource_version, self._list_version):
            return
        if before is not None:
            if before.uid != meta.uid:
                self._bury(key, changes)
            elif not _is_news(meta.resource_version, before.resource_version):
                return
        self.objects[key] = KnownObject(meta.uid, meta.resource_version)
        changes.append(change)

    def _resume_after(self, version: str) -> None:
        assert isinstance(self.request, Watch)
        if version and _is_news(version, self.request.resource_version):
            self.request = Watch(version)

    def _decode(
        self, data: msgspec.Raw, changes: list[Change[ObjectT]]
    ) -> tuple[ObjectMeta | Identity, ObjectSeen[ObjectT] | ObjectRefused] | None:
        """Decode an object; None, and a change that says why, when it does not even tell which object it is."""
        try:
            read = self.resource.decode(data)
        except InvalidObject as error:
            subject = identity(data)
            if subject is None:
                changes.append(ObjectRefused(error))
                return None
            return subject, ObjectRefused(error, subject.uid, subject.resource_version)
        meta = read.metadata
        if not meta.uid or not meta.name:
            problem = f"no uid, or no name ({meta.name!r})"
            changes.append(ObjectRefused(InvalidObject(self.resource.kind, "metadata.uid", meta.uid, problem)))
            return None
        return meta, ObjectSeen(read)

    def _bury(self, key: ObjectKey, changes: list[Change[ObjectT]], *, version: str = "", again: bool = False) -> None:
        gone = self.objects.pop(key)
        self._buried[gone.uid] = None
        if len(self._buried) > MAX_BURIED:
            del self._buried[next(iter(self._buried))]
        changes.append(ObjectGone(key, gone.uid, version or gone.resource_version, missed=not version, again=again))


def _is_news(version: str, last: str) -> bool:
    """True if a version may be newer than a known one."""
    if version.isdecimal() and last.isdecimal():
        return int(version) > int(last)
    return version != last


def _bookmark_version(data: msgspec.Raw) -> str:
    try:
        return _bookmark_decoder.decode(data).metadata.resource_version
    except msgspec.DecodeError:
        return ""
