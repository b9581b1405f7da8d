"""Forms of objects in answers: in full, as rows of a Table, or only metadata; alone, in lists, in watch events."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime

from kai_apiserver.objects import Object, encode_json
from kai_apiserver.resources.registry import ResourceType
from kai_apiserver.rest.backend import encode
from kai_apiserver.rest.listing import Page
from kai_apiserver.rest.tables import partial_metadata, table
from kai_apiserver.store import Event, EventType, Stored

_META = "meta.k8s.io"


@dataclass(frozen=True, slots=True)
class View:
    """The form that a client's Accept header asks for.

    Attributes:
        resource: objects are shown in its version.
        form: `Object`, `Table` or `PartialObjectMetadata`.
        include: for Tables, how much of the objects goes with the rows.
        now: the time, for ages.
    """

    resource: ResourceType
    form: str
    include: str
    now: Callable[[], datetime]

    @classmethod
    def read(cls, resource: ResourceType, accept: str, *, include: str, now: Callable[[], datetime]) -> "View":
        """Read an Accept header: the first form in it that is known."""
        for choice in accept.split(","):
            parameters = dict(part.strip().split("=", 1) for part in choice.split(";")[1:] if "=" in part)
            wanted = parameters.get("as", "")
            if wanted == "Table" and parameters.get("g") == _META:
                return cls(resource, "Table", include or "Metadata", now)
            if wanted.startswith("PartialObjectMetadata") and parameters.get("g") == _META:
                return cls(resource, "PartialObjectMetadata", "", now)
            if not wanted and choice.strip():
                break
        return cls(resource, "Object", "", now)

    def one(self, stored: Stored, *, headings: bool = True) -> bytes:
        """An object alone."""
        if self.form == "Object":
            return encode(stored, self.resource)
        if self.form == "PartialObjectMetadata":
            return encode_json(partial_metadata(stored.decode()))
        metadata = {"resourceVersion": str(stored.rv)}
        return encode_json(
            table(self.resource, [stored], metadata, now=self.now(), include=self.include, headings=headings)
        )

    def many(self, page: Page) -> Iterator[bytes]:
        """A list, in pieces."""
        metadata: Object = {"resourceVersion": str(page.rv)}
        if page.token:
            metadata["continue"] = page.token
        if page.remaining:
            metadata["remainingItemCount"] = page.remaining
        if self.form == "Table":
            yield encode_json(table(self.resource, page.items, metadata, now=self.now(), include=self.include))
            return
        if self.form == "PartialObjectMetadata":
            kind, api_version = "PartialObjectMetadataList", f"{_META}/v1"
        else:
            kind, api_version = self.resource.list_kind_name, self.resource.api_version
        yield encode_json({"kind": kind, "apiVersion": api_version, "metadata": metadata})[:-1] + b',"items":['
        yield from self._items(page.items)
        yield b"]}"

    def _items(self, items: list[Stored]) -> Iterator[bytes]:
        """The objects of a list, a few hundred joined at a time."""
        for first in range(0, len(items), 256):
            some = items[first : first + 256]
            joined = b",".join(map(self._item, some))
            yield b"," + joined if first else joined

    def _item(self, stored: Stored) -> bytes:
        if self.form == "PartialObjectMetadata":
            return encode_json(partial_metadata(stored.decode()))
        if self.resource.custom is not None:
            return self.resource.prefix + stored.body[1:]
        if self.resource.from_storage is not None:
            return encode_json(self.resource.from_storage(stored.decode()))
        return stored.body

    def line(self, seen: EventType, event: Event, *, headings: bool = False) -> bytes:
        """A watch event, encoded once for all who see it alike."""
        if self.form == "Table":
            return self._line(seen, event, headings=headings)
        key = (self.resource.api_version, self.form, seen)
        line = event.lines.get(key)
        if line is None:
            line = event.lines[key] = self._line(seen, event, headings=False)
        return line

    def _line(self, seen: EventType, event: Event, *, headings: bool) -> bytes:
        stored = event.stored
        if seen is EventType.DELETED and event.type is not EventType.DELETED and event.previous is not None:
            stored = event.previous.at_version(event.rv)  # the last state that this watcher may see
        return b'{"type":"%s","object":%s}\n' % (seen.value.encode(), self.one(stored, headings=headings))

    def bookmark(self, rv: int, *, initial_events_end: bool = False) -> bytes:
        """A BOOKMARK event: everything up to `rv` was seen."""
        metadata: Object = {"resourceVersion": str(rv)}
        if initial_events_end:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        if self.form == "Object":
            obj: Object = {"kind": self.resource.kind, "apiVersion": self.resource.api_version, "metadata": metadata}
        else:
            obj = {"kind": self.form, "apiVersion": f"{_META}/v1", "metadata": metadata}
            if self.form == "Table":
                obj["rows"] = []
        return b'{"type":"BOOKMARK","object":%s}\n' % encode_json(obj)
