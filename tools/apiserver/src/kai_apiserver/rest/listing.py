"""Lists: selectors, pages pinned to one resourceVersion, and which resourceVersion a client asks for."""

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import msgspec

from kai_apiserver.errors import (
    FieldError,
    NamedResource,
    bad_request,
    expired_continue,
    expired_list,
    invalid,
    too_large_version,
)
from kai_apiserver.rest.backend import Backend, Target
from kai_apiserver.rest.selectors import (
    EVERYTHING,
    FieldTerm,
    LabelSelector,
    parse_field_selector,
    parse_label_selector,
)
from kai_apiserver.store import Collection, Stored

#: Seconds that a list waits for a resourceVersion that is not there yet.
WAIT_FOR_VERSION_S = 3.0

#: What is at fault when a query makes no sense.
LIST_OPTIONS = NamedResource("listoptions", "meta.k8s.io", "ListOptions")


@dataclass(frozen=True, slots=True)
class ListSelection:
    """A selection of objects of a collection.

    Attributes:
        namespace: only of this namespace; empty for all.
        name: only of this name; empty for all.
        fields: the other terms of the field selector, with the place of each in `Stored.fields`.
        indexed: the field and value by which the collection can look objects up, if any.
    """

    namespace: str = ""
    name: str = ""
    labels: LabelSelector = EVERYTHING
    fields: tuple[tuple[int, FieldTerm], ...] = ()
    indexed: tuple[str, str] | None = None
    impossible: bool = False

    @classmethod
    def read(cls, collection: Collection, target: Target, *, query: dict[str, str]) -> "ListSelection":
        """Read the selectors of a query.

        Raises StatusError: 400, a selector cannot be read or names a field that cannot be selected by.
        """
        places = {field.label: place for place, field in enumerate(collection.resource.selectable)}
        fields: list[tuple[int, FieldTerm]] = []
        indexed = None
        names, namespaces = {target.name} - {""}, {target.namespace} - {""}
        for term in parse_field_selector(query.get("fieldSelector", "")):
            if term.field in ("metadata.name", "metadata.namespace"):
                if not term.equal:
                    fields.append((-1 if term.field == "metadata.name" else -2, term))
                elif term.value:
                    (names if term.field == "metadata.name" else namespaces).add(term.value)
                continue
            if term.field not in places:
                raise bad_request(f"field label not supported: {term.field}")
            fields.append((places[term.field], term))
            if term.equal and indexed is None and collection.is_indexed(term.field):
                indexed = (term.field, term.value)
        return cls(
            namespace=min(namespaces, default=""),
            name=min(names, default=""),
            labels=parse_label_selector(query.get("labelSelector", "")),
            fields=tuple(fields),
            indexed=indexed,
            impossible=len(names) > 1 or len(namespaces) > 1,
        )

    @property
    def prefix(self) -> str:
        """The beginning of the keys of the selected objects."""
        return f"{self.namespace}/" if self.namespace else ""

    @property
    def predicate(self) -> Callable[[Stored], bool] | None:
        """True if an object is selected, namespace and name aside; None if all are."""
        if self.impossible:
            return lambda stored: False
        labels = self.labels if self.labels.requirements else None
        fields = self.fields
        if labels is None and not fields:
            return None

        def selected(stored: Stored) -> bool:
            for place, term in fields:
                value = stored.fields[place] if place >= 0 else (stored.name if place == -1 else stored.namespace)
                if (value == term.value) is not term.equal:
                    return False
            return labels is None or labels.matches(stored.labels)

        return selected


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list.

    Attributes:
        rv: the resourceVersion as of which they are.
        token: where the next page begins; empty on the last.
        remaining: how many objects are behind this page; None where selectors make that unknown.
    """

    items: list[Stored]
    rv: int
    token: str = ""
    remaining: int | None = None


class _Token(msgspec.Struct):
    v: str
    rv: int
    start: str


def _encode_token(rv: int, start: str) -> str:
    raw = msgspec.json.encode(_Token("meta.k8s.io/v1", rv, start)).replace(b"\x00", b"\\u0000")
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _decode_token(token: str) -> _Token:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)), type=_Token)
    except (ValueError, msgspec.DecodeError) as error:
        raise bad_request("continue key is not valid: illegal base64 data or JSON") from error


async def list_page(backend: Backend, target: Target, *, query: dict[str, str]) -> Page:
    """List what a query asks for.

    Raises:
        StatusError: 400 or 422, the query makes no sense; 410, what it continues is forgotten; 504, it asks for the
        future.
    """
    collection = backend.collection(target.resource)
    selection = ListSelection.read(collection, target, query=query)
    limit = _number(query, "limit")
    token, asked, match = (
        query.get("continue", ""),
        query.get("resourceVersion", ""),
        query.get("resourceVersionMatch", ""),
    )
    if match and not asked:
        raise _list_options(
            "resourceVersionMatch", "resourceVersionMatch is forbidden unless resourceVersion is provided"
        )
    if token:
        if asked and asked != "0":
            raise bad_request("specifying resource version is not allowed when using continue")
        return _continued(collection, selection, limit=limit, token=_decode_token(token), now=backend.store.rv)
    if asked in ("", "0"):
        rv = backend.store.rv if not asked else collection.rv
        return _page(collection, selection, limit=limit if not asked else 0, rv=rv)
    rv = _number(query, "resourceVersion")
    if rv > backend.store.rv:
        seconds = min(_number(query, "timeoutSeconds") or WAIT_FOR_VERSION_S, WAIT_FOR_VERSION_S)
        if not await backend.store.reached(rv, seconds):
            raise too_large_version(rv, collection.rv)
    if match == "Exact" or (not match and limit):
        return _page_at(collection, selection, limit=limit, rv=rv)
    return _page(collection, selection, limit=limit, rv=backend.store.rv)


def _number(query: dict[str, str], name: str) -> int:
    text = query.get(name) or "0"
    if not text.isdecimal():
        raise bad_request(f'Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax')
    return int(text)


def _list_options(field: str, why: str) -> Exception:
    error = FieldError.forbidden(field, why)
    return invalid(LIST_OPTIONS, "", errors=[error])


def _continued(collection: Collection, selection: ListSelection, *, limit: int, token: _Token, now: int) -> Page:
    start = selection.prefix + token.start
    if token.rv < 0:
        return _cut(collection.scan(selection.prefix, start), selection, limit=limit, rv=now)
    then = collection.scan_at(token.rv, selection.prefix, start)
    if then is None:
        raise expired_continue(_encode_token(-1, token.start))
    return _cut(then, selection, limit=limit, rv=token.rv)


def _page_at(collection: Collection, selection: ListSelection, *, limit: int, rv: int) -> Page:
    then = collection.scan_at(rv, selection.prefix)
    if then is None:
        raise expired_list()
    return _cut(then, selection, limit=limit, rv=rv)


def _page(collection: Collection, selection: ListSelection, *, limit: int, rv: int) -> Page:
    if selection.name and not limit:
        key = f"{selection.namespace}/{selection.name}" if collection.resource.namespaced else selection.name
        if selection.namespace or not collection.resource.namespaced:
            named = collection.get(key)
            return Page(list(_select(iter([named] if named is not None else []), selection)), rv)
    indexed = collection.with_field(*selection.indexed) if selection.indexed is not None else None
    candidates = iter(indexed) if indexed is not None else collection.scan(selection.prefix)
    return _cut(candidates, selection, limit=limit, rv=rv)


def _select(candidates: Iterator[Stored], selection: ListSelection) -> Iterator[Stored]:
    predicate = selection.predicate
    if selection.namespace:
        candidates = (stored for stored in candidates if stored.namespace == selection.namespace)
    if selection.name:
        candidates = (stored for stored in candidates if stored.name == selection.name)
    return filter(predicate, candidates) if predicate is not None else candidates


def _cut(candidates: Iterator[Stored], selection: ListSelection, *, limit: int, rv: int) -> Page:
    """The first `limit` selected objects of `found`, and where to go on."""
    selected = _select(candidates, selection)
    page = list(islice(selected, limit or None))
    following = next(selected, None)
    if following is None:
        return Page(page, rv)
    start = page[-1].key.removeprefix(selection.prefix) + "\x00"
    narrowed = selection.predicate is not None or selection.name
    remaining = None if narrowed else 1 + sum(1 for _ in selected)
    return Page(page, rv, _encode_token(rv, start), remaining)
