"""Pages of HTML from templates, and the frame around each: its position in the log, its links, and the search.

One environment has all templates, and one set of headers keeps a page to itself. What goes wrong is a page too. Bars
are parts of a whole, as percentages that templates draw.
"""

import hashlib
import zlib
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from http import HTTPStatus
from importlib.resources import files
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute
from jinja2 import Environment, PackageLoader, StrictUndefined
from kaicore.analysis.ask.projections.capacity import Gpus
from kaicore.analysis.ask.queries import Inquiry
from kaicore.analysis.json_spelling import duration_text, time_text
from kaicore.analysis.replay.moments import parse_moment, position_of
from kaicore.errors import KaiError
from kaicore.ledger.log.port import Filter
from kaicore.rules.groups.membership import POD
from kaicore.rules.hub.hub_state import without_hub
from kaicore.rules.model.gpu_share import gpus_text
from kaicore.rules.model.quantity import readable_amount
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.views import ClusterView
from kaicore.runtime.access.scopes import EVERYTHING, View, current_caller, current_view
from kaicore.spelling import did_you_mean
from starlette.exceptions import HTTPException

from kai_api.answering import error_text, status_of
from kai_api.board import ServicesWatch
from kai_api.pages.problems import Problem, problems

#: Hits that are shown.
MOST_HITS = 100


@dataclass(frozen=True, slots=True)
class Hit:
    """Something that has a name.

    Attributes:
        kind: Node, Queue, Pod, or what a group's kind is.
        parts: of its page's path below the cluster's.
        query: of its page's address.
    """

    kind: str
    name: str
    parts: tuple[str, ...]
    query: tuple[tuple[str, str], ...] = ()


def search(state: ClusterView, text: str, view: View = EVERYTHING) -> tuple[Hit, ...]:
    """Return what has a text in its name: equal names first, then by name; of `a/b`, b in namespace a.

    Args:
        view: what the caller may see.
    """
    wanted = text.strip().lower()
    if not wanted:
        return ()
    hits = [hit for hit in _all(state) if wanted in hit.name.lower() and (view.whole or _in_view(hit, view))]

    def order(hit: Hit) -> tuple[bool, str, str]:
        plain = hit.name.lower()
        return wanted not in (plain, plain.rpartition("/")[2]), hit.name, hit.kind

    return tuple(sorted(hits, key=order)[:MOST_HITS])


def _in_view(hit: Hit, view: View) -> bool:
    namespace, slash, _ = hit.name.partition("/")
    return bool(slash) and hit.parts[0] == "stories" and view.sees(namespace)


def _all(state: ClusterView) -> Iterator[Hit]:
    for name, row in state.columns.rows.items():
        if state.columns.facts[row] is not None:
            yield Hit("Node", name, ("nodes", name))
    for name in state.queues:
        yield Hit("Queue", name, ("waiting",), (("queue", name),))
    for key, group in state.groups.items():
        if group.origin != POD and not key.startswith(f"{POD}/"):
            kind = group.origin.partition(".")[0]
            yield Hit(kind, f"{group.namespace}/{group.name}", ("stories", kind, group.namespace, group.name))
    for entry in state.pods.values():
        pod = entry.pod
        yield Hit("Pod", f"{pod.namespace}/{pod.name}", ("stories", "Pod", pod.namespace, pod.name))


@dataclass(frozen=True, slots=True)
class Tab:
    """A page in the navigation.

    Attributes:
        whole: whether it is for those only who may see all of a cluster.
        shadowed: whether it is for clusters only that have a shadow.
    """

    name: str
    path: str
    title: str
    whole: bool = True
    shadowed: bool = False


TABS = (
    Tab("overview", "", "Overview", whole=False),
    Tab("waiting", "/waiting", "Waiting", whole=False),
    Tab("jobs", "/jobs", "Jobs", whole=False),
    Tab("pods", "/pods", "Pods", whole=False),
    Tab("nodes", "/nodes", "Nodes"),
    Tab("map", "/map", "Map"),
    Tab("queues", "/queues", "Queues"),
    Tab("reservations", "/reservations", "Reservations"),
    Tab("charts", "/charts", "Over time"),
    Tab("cycles", "/cycles", "Cycles"),
    Tab("predictions", "/predictions", "Predictions"),
    Tab("reports", "/reports", "Reports"),
    Tab("segments", "/segments", "Idle segments"),
    Tab("shadow", "/shadow", "Shadow", shadowed=True),
    Tab("services", "/services", "Services"),
)


@dataclass(frozen=True, slots=True)
class Frame:
    """A page's place.

    Attributes:
        position: the page's place in the log.
        first: the first position that there is a state of.
        head: the log's end.
        recorded_at: of the page's position, microseconds since the epoch.
        live: whether the page follows the log's end.
        cycle_before, cycle_after: positions right after the last cycle before and the first one behind; 0 for none.
        path, query: the page's address, without the position.
        live_path: where the log's end is followed; empty for the same path.
        whole: whether the caller may see all of the cluster.
        shadowed: whether a shadow has decided on pods of the cluster.
        problems: of the cluster, as of the position.
        services: those that are not well now; of no page of the past.
    """

    cluster: str
    clusters: tuple[str, ...]
    position: int
    first: int
    head: int
    recorded_at: int
    live: bool
    cycle_before: int
    cycle_after: int
    path: str
    query: tuple[tuple[str, str], ...] = ()
    live_path: str = ""
    whole: bool = True
    shadowed: bool = False
    problems: tuple[Problem, ...] = ()
    services: tuple[str, ...] = ()

    @property
    def tabs(self) -> tuple[Tab, ...]:
        """The pages that there are for the caller."""
        return tuple(tab for tab in TABS if (self.whole or not tab.whole) and (self.shadowed or not tab.shadowed))

    @property
    def home(self) -> str:
        """Path of the cluster's first page."""
        return f"/clusters/{quote(self.cluster, safe='')}"

    @property
    def at(self) -> int | None:
        """The position that links name; None on a live page."""
        return None if self.live else self.position

    @property
    def when(self) -> str:
        """The page's time, for people."""
        return short_time(self.recorded_at) if self.recorded_at else "before the first event"

    def link(self, *parts: str, **query: object) -> str:
        """Return the address of another page at the same position; parts are of the path below the cluster's."""
        return self._address("/".join((self.home, *(quote(part, safe="") for part in parts))), query, self.at)

    def tab(self, tab: Tab) -> str:
        """Return the address of a page in the navigation at the same position."""
        return self._address(self.home + tab.path, {}, self.at)

    def here(self, at: int | None, **query: object) -> str:
        """Return the address of this page at another position, or with something else in its query."""
        return self._address(self.path, {**dict(self.query), **query}, at)

    @property
    def live_link(self) -> str:
        """Return the address that follows the log's end."""
        return self.live_path or self.here(None)

    @property
    def permalink(self) -> str:
        """Return the address of this page at this position."""
        return self.here(self.position)

    @staticmethod
    def _address(path: str, query: dict[str, object], at: int | None) -> str:
        given = {name: str(value) for name, value in query.items() if value not in ("", None)}
        if at is not None:
            given["at"] = str(at)
        return f"{path}?{urlencode(given)}" if given else path


def short_time(microseconds: int) -> str:
    """Write a time as people read it: `2026-11-22 10:08:03 UTC`."""
    return f"{time_text(microseconds)[:19].replace('T', ' ')} UTC" if microseconds else "never"


def clock(microseconds: int) -> str:
    """Write the time of day: `10:08:03`."""
    return time_text(microseconds)[11:19]


def pods_text(count: int, one: str, several: str) -> str:
    """Write how many pods do something: `1 pod waits`, `2 pods wait`."""
    return f"{count} pod {one}" if count == 1 else f"{count} pods {several}"


class Place:
    """A page's place in a log."""

    def __init__(
        self,
        frame: Frame,
        state: Callable[[], Awaitable[ClusterState]],
        found: Callable[[ClusterState], tuple[Problem, ...]],
    ) -> None:
        """Args:
        frame: as far as it is known without the state.
        state: gets the state; it may change with the next `await`.
        found: gets the state's problems.
        """
        self._frame = frame
        self._state = state
        self._found = found
        self.position = frame.position

    async def look(self) -> tuple[Frame, ClusterState]:
        """Return the frame and the state, to be answered from before the next `await`."""
        state = await self._state()
        frame = replace(
            self._frame,
            position=state.position,
            head=max(self._frame.head, state.position),
            recorded_at=state.recorded_at,
            cycle_before=max((known for _, known in state.last_cycles.values()), default=0),
            shadowed=bool(state.shadows.evicted),
            problems=self._found(state) if self._frame.whole else (),
        )
        return frame, state


class Places:
    """Finds where in logs pages are."""

    def __init__(self, inquiry: Inquiry, services: ServicesWatch) -> None:
        self._inquiry = inquiry
        self._log = inquiry.log
        self._services = services
        # Of each cluster at the position that was looked at last: one page asks for several parts of it.
        self._found: dict[str, tuple[int, tuple[Problem, ...]]] = {}

    def _problems(self, state: ClusterState) -> tuple[Problem, ...]:
        position, found = self._found.get(state.cluster, (-1, ()))
        if position != state.position:
            found = problems(state)
            self._found[state.cluster] = state.position, found
        return found

    async def find(self, request: Request, cluster: str, at: str) -> Place:
        """Return where a page is.

        Args:
            request: the page's.
            at: a moment; empty for the log's end.

        Raises:
            HTTPException: there is no such cluster.
            UnknownMoment: there is no such moment.
            EventsRetired: what it takes to know the state there is gone.
            LogUnavailable: the log does not answer.
        """
        clusters = current_caller().visible(without_hub(await self._log.clusters()))
        if cluster not in clusters:
            raise HTTPException(404, f"no cluster {cluster!r} in the log{did_you_mean(cluster, clusters)}")
        head = await self._log.head(cluster)
        position, after = head.position, 0
        if at:
            position = await position_of(self._log, cluster, parse_moment(at))
            coming = await self._log.read(cluster, after=position, limit=1, where=Filter(types=("CycleCompleted",)))
            after = coming[0].position if coming else 0
        whole = current_view().whole
        if whole and not at:
            await self._services.wanted()
        frame = Frame(
            cluster=cluster,
            clusters=tuple(clusters),
            position=position,
            first=await self._log.retired(cluster),
            head=head.position,
            recorded_at=0,
            live=not at,
            cycle_before=0,
            cycle_after=after,
            path=request.url.path,
            whole=whole,
            services=self._services.unwell if whole and not at else (),
            query=tuple((name, value) for name, value in request.query_params.items() if name != "at"),
        )
        state = partial(self._inquiry.state_at, cluster, str(position) if at else "")
        return Place(frame, state, self._problems)


#: Nothing from elsewhere, and no script or style in the page itself.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "private, no-cache",
    "Vary": "Cookie, Accept-Encoding",
}
_MEDIA_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_THEMES = ("light", "dark")
#: Bytes from which on an answer is compressed.
_WORTH_COMPRESSING = 1400


def page(request: Request, template: str, *, status: int = 200, **model: object) -> Response:
    """Render a page."""
    theme = request.cookies.get("theme", "")
    text = _environment().get_template(template).render(theme=theme if theme in _THEMES else "", **model)
    return _answer(request, text.encode(), "text/html; charset=utf-8", _HEADERS, status=status)


def static_file(request: Request, name: str) -> Response | None:
    """Return a file that pages need; None if there is none of the name."""
    if name not in _static():
        return None
    body, media_type = _static()[name]
    # Its address has a digest of it.
    headers = {"Cache-Control": "public, max-age=31536000, immutable", "X-Content-Type-Options": "nosniff"}
    return _answer(request, body, media_type, headers)


def _answer(
    request: Request, body: bytes, media_type: str, headers: Mapping[str, str], *, status: int = 200
) -> Response:
    headers = dict(headers)
    if len(body) >= _WORTH_COMPRESSING and "gzip" in request.headers.get("accept-encoding", ""):
        packer = zlib.compressobj(5, zlib.DEFLATED, 31)
        body = packer.compress(body) + packer.flush()
        headers["Content-Encoding"] = "gzip"
    return Response(body, status_code=status, headers=headers, media_type=media_type)


@cache
def _static() -> dict[str, tuple[bytes, str]]:
    folder = files("kai_api.pages") / "static"
    return {
        one.name: (one.read_bytes(), _MEDIA_TYPES[one.name.rpartition(".")[2]])
        for one in folder.iterdir()
        if one.name.rpartition(".")[2] in _MEDIA_TYPES
    }


def _asset(name: str) -> str:
    return f"/static/{name}?v={hashlib.sha256(_static()[name][0]).hexdigest()[:12]}"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("kai_api.pages", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.globals.update(asset=_asset, readable=readable_amount)
    environment.filters.update(when=short_time, clock=clock, duration=duration_text, pods=pods_text, gpus=gpus_text)
    return environment


class PageRoute(APIRoute):
    """A route with errors that people read."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """See `APIRoute`."""
        handler = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handler(request)
            except HTTPException as error:
                return _error(request, HTTPStatus(error.status_code), str(error.detail))
            except RequestValidationError as error:
                faults = "; ".join(f"{fault['loc'][-1]}: {fault['msg']}" for fault in error.errors())
                return _error(request, HTTPStatus.BAD_REQUEST, faults)
            except KaiError as error:
                return _error(request, HTTPStatus(status_of(error)), error_text(error))

        return answer


def _error(request: Request, status: HTTPStatus, why: str) -> Response:
    # What leads to a cluster that there is not is no way on.
    cluster = "" if why.startswith("no cluster ") else request.path_params.get("cluster", "")
    return page(request, "error.html", status=status, title=status.phrase, why=why, cluster=cluster)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a bar.

    Attributes:
        kind: what it is, which is also its class in the style sheet.
        start, width: in hundredths of the bar.
    """

    kind: str
    label: str
    amount: str
    start: float
    width: float


_RowT = TypeVar("_RowT")

#: What GPUs can be, by their class in the style sheet, which is also the field of `Gpus`.
GPU_STATES = (
    ("held", "held"),
    ("releasing", "releasing"),
    ("free", "free"),
    ("stranded", "stranded"),
    ("out", "out of service"),
)


def parts(whole: float, amounts: Iterable[tuple[str, str, float, str]]) -> tuple[Part, ...]:
    """Lay parts out one after another.

    Args:
        whole: what the full bar stands for; parts beyond it are cut off.
        amounts: kind, label, amount and the amount's text of each; those of nothing are left out.
    """
    made, start = [], 0.0
    for kind, label, amount, text in amounts:
        width = min(100.0 * amount / whole, 100.0 - start) if whole > 0 else 0.0
        if amount > 0:
            made.append(Part(kind, label, text, round(start, 2), round(width, 2)))
            start += width
    return tuple(made)


def gpu_parts(gpus: Gpus) -> tuple[Part, ...]:
    """Return the bar of some nodes' GPUs."""
    kinds = ((kind, label, int(getattr(gpus, kind))) for kind, label in GPU_STATES)
    return parts(gpus.total, ((kind, label, amount, gpus_text(amount)) for kind, label, amount in kinds))


def use_parts(total: int, used: int, releasing: int, text: Callable[[int], str]) -> tuple[Part, ...]:
    """Return the bar of a resource: held, releasing and free.

    Args:
        used: held or releasing; it may be more than the total.
        text: writes an amount.
    """
    free = max(0, total - used)
    amounts = (("held", used - releasing), ("releasing", releasing), ("free", free))
    return parts(max(total, used), ((kind, kind, amount, text(amount)) for kind, amount in amounts))


def page_of(rows: Sequence[_RowT], number: int, size: int) -> tuple[Sequence[_RowT], int, int]:
    """Return a page of rows, its number from 1, and how many there are; the last one where there are not so many."""
    pages = max(1, -(-len(rows) // size))
    number = min(max(1, number), pages)
    return rows[(number - 1) * size : number * size], number, pages
