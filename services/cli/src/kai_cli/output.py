"""Printed answers (a table for people, JSON or YAML for machines), and the progress of a long command on stderr."""

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from textwrap import indent
from typing import Annotated, Literal, Protocol, Self, TypeVar

import msgspec
from cyclopts import Parameter
from kaicore.analysis.ask.answers import (
    ClusterRow,
    CycleRow,
    DispatchRow,
    DispatchWhy,
    GroupRow,
    Listing,
    NodeResource,
    NodeRow,
    PodRow,
    QueueRow,
    Row,
    ZoneAmounts,
    ZoneHolder,
    ZoneRow,
)
from kaicore.analysis.life.why_answers import SharedGpuAnswer
from kaicore.rules.model.quantity import readable_amount
from kaicore.rules.objects.gpu_sharing import GPU

#: Seconds until the line is shown at all, and between two times that it is written.
_PATIENCE_S, _EVERY_S = 0.5, 0.1
#: The same where it goes into a file or to another program.
_PATIENCE_ELSEWHERE_S = 30.0
#: Seconds that must have passed before a rate says anything.
_RATE_S = 1.0
#: Clears a line.
_CLEAR = "\r\x1b[2K"


class _OfMoment(Protocol):
    @property
    def cluster(self) -> str: ...

    @property
    def position(self) -> int: ...

    @property
    def recorded_at(self) -> str: ...


_OfMomentT = TypeVar("_OfMomentT", bound=_OfMoment)


class Progress:
    """A line such as `replaying events  41 % (28,000 of 68,000)  9,300/s  3 s, 4 s left`, gone when the block ends."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._shown = False
        self._began = self._written = 0.0

    def __enter__(self) -> Self:
        self._began = self._written = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    def __call__(self, done: int, of: int = 0) -> None:
        """Tell how much is done; of how much, where that is known: when it is all, the line goes."""
        now = time.monotonic()
        if done == of:
            self._clear()
            self._began = self._written = now
            return
        terminal = sys.stderr.isatty()
        due = (_EVERY_S if self._shown else _PATIENCE_S) if terminal else _PATIENCE_ELSEWHERE_S
        if now - self._written < due:
            return
        self._shown, self._written = terminal, now
        line = f"{self._what}  {_amount(done, of)}  {_pace(done, of, now - self._began)}"
        sys.stderr.write(f"{_CLEAR}{line}" if terminal else f"{line}\n")
        sys.stderr.flush()

    def _clear(self) -> None:
        if self._shown:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()
        self._shown = False


def _amount(done: int, of: int) -> str:
    return f"{100 * done // of} % ({done:,} of {of:,})" if of else f"{done:,}"


def _pace(done: int, of: int, passed_s: float) -> str:
    """Say how fast it goes, how long it has gone on, and how long it will, if it goes on so."""
    if passed_s < _RATE_S or not done:
        return f"{passed_s:.0f} s"
    rate = done / passed_s
    left = f", {_length((of - done) / rate)} left" if of else ""
    return f"{rate:,.0f}/s  {_length(passed_s)}{left}"


def _length(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


Output = Literal["table", "json", "yaml"]
OutputFlag = Annotated[Output, Parameter(name=["--output", "-o"], help="table, json or yaml.")]

#: ANSI colours by what a status says.
_COLOURS = {
    "Pending": "33",
    "Gated": "33",
    "Terminating": "33",
    "Rejected": "31",
    "Failed": "31",
    "NotReady": "31",
    "Running": "32",
    "Ready": "32",
    "ready": "32",
    "Succeeded": "2",
}


def print_data(answer: object, output: Output) -> None:
    """Print an answer for machines; JSON is indented on a terminal."""
    body = msgspec.json.encode(answer)
    if output == "yaml":
        # A tenth of a second that a table need not wait for.
        import yaml  # noqa: PLC0415

        print(yaml.safe_dump(msgspec.json.decode(body), sort_keys=False, allow_unicode=True), end="")
        return
    print((msgspec.json.format(body, indent=2) if sys.stdout.isatty() else body).decode())


def print_answer(answer: object, output: Output, text: Callable[[], str]) -> None:
    """Print an answer: for people what `text` returns, or for machines."""
    if output == "table":
        print(text())
    else:
        print_data(answer, output)


def print_answers(answers: Sequence[object], output: Output, text: Callable[[], str]) -> None:
    """Print an answer per cluster: for machines, of one cluster as the API answers it, of several in a list."""
    print_answer(answers[0] if len(answers) == 1 else answers, output, text)


def print_each(answers: Sequence[_OfMomentT], output: Output, text: Callable[[_OfMomentT], str], *, at: str) -> None:
    """Print an answer per cluster; for people, the cluster above it where there are several, and a named moment."""

    def each() -> Iterator[str]:
        for answer in answers:
            if len(answers) > 1:
                yield f"cluster {answer.cluster}:"
            if at:
                yield as_of(answer.position, answer.recorded_at)
            yield text(answer)

    print_answers(answers, output, lambda: "\n".join(each()))


def warn(warnings: Iterable[str]) -> None:
    """Write warnings to standard error."""
    sys.stderr.writelines(f"kai: warning: {warning}\n" for warning in warnings)


def aligned(rows: Sequence[Sequence[str]], *, between: str = "   ") -> list[str]:
    """Return rows as lines with columns, whatever a terminal is: no colours, and nothing is cut."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [between.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def in_colour() -> bool:
    """True if the terminal gets colours: not with `--no-color`, `$NO_COLOR`, or where it is none."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as kubectl draws it; the last column is cut to the terminal's width."""
    cells = [[" ".join(cell.split()) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    room = shutil.get_terminal_size((10_000, 50)).columns if sys.stdout.isatty() else 10_000
    lines = [_line(head, widths, room, colour=False)]
    lines += [_line(row, widths, room, colour=in_colour()) for row in cells]
    return "\n".join(lines)


def _line(row: Sequence[str], widths: Sequence[int], room: int, *, colour: bool) -> str:
    *first, last = row
    left = sum(widths[:-1]) + 3 * len(first)
    if len(last) > max(room - left, 20):
        last = last[: max(room - left, 20) - 1] + "…"
    parts = [_coloured(cell, width, colour=colour) for cell, width in zip(first, widths, strict=False)]
    return "   ".join([*parts, last]).rstrip()


def _coloured(cell: str, width: int, *, colour: bool) -> str:
    code = _COLOURS.get(cell.partition(",")[0]) if colour else None
    padding = " " * (width - len(cell))
    return f"{cell}{padding}" if code is None else f"\x1b[{code}m{cell}\x1b[0m{padding}"


#: Heads of the tables by kind.
_HEADS: dict[str, tuple[str, ...]] = {
    "clusters": ("NAME", "POSITION", "LAST EVENT", "STATE"),
    "pods": ("NAMESPACE", "NAME", "STATUS", "NODE", "ZONES", "QUEUE", "WHY"),
    "groups": (
        *("NAMESPACE", "NAME", "KIND", "QUEUE", "PRIORITY", "GPUS", "SINCE"),
        *("MINIMUM", "RUNNING", "WAITING", "SUCCEEDED", "EXPECTED", "WHY"),
    ),
    "queues": (
        *("NAME", "PARENT", "RUNNING", "WAITING"),
        *("RESOURCE", "QUOTA", "LIMIT", "FAIR SHARE", "ALLOCATED", "REQUESTED"),
    ),
    "nodes": ("NAME", "STATUS", "POLICY", "SCOPE", "ZONES", "PODS", "REJECTIONS", "USED"),
    "zones": ("NODE", "ZONE", "RESOURCE", "ALLOCATABLE", "HELD", "RELEASING", "FREE", "BY"),
    "cycles": ("CYCLE", "POSITION", "INPUT", "RECORDED", "PODS", "PLACED", "NOMINATED", "EVICTED"),
}


def as_of(position: int, recorded_at: str) -> str:
    """Return the line above an answer about the past that says which moment it is about."""
    return f"as of position {position}, {f'recorded at {recorded_at}' if recorded_at else 'before the first event'}"


def listing_text(listing: Listing) -> str:
    """Return a list."""
    if listing.unlisted_since:
        return (
            f"no {listing.kind} recorded since the watcher started at {listing.unlisted_since}: "
            "its first list may not be complete (`kai status` shows its state)"
        )
    if listing.kind not in _HEADS or not listing.rows:
        return f"no {listing.kind}"
    text = rows_text(listing.kind, listing.rows)
    shown = len(listing.rows)
    return text if shown == listing.total else f"{text}\n({shown} of {listing.total}; --limit shows more)"


def rows_text(kind: str, rows: Sequence[Row | ClusterRow]) -> str:
    """Return rows of one kind under their head."""
    head, lines = _HEADS[kind], [line for row in rows for line in _cells(row)]
    # Where no GPU is shared there is nothing to say.
    if any(isinstance(row, PodRow | NodeRow) and row.gpus for row in rows):
        head = (*head[:-1], "GPUS", head[-1])
        lines = [(*line[:-1], _gpus_text(row), line[-1]) for row, line in zip(rows, lines, strict=True)]
    return table(head, lines)


def _gpus_text(row: Row | ClusterRow) -> str:
    """Return the parts of GPUs that a pod holds; of a node how many GPUs are free and whole, and the opened ones."""
    match row:
        case PodRow():
            return ", ".join(part.text for part in row.gpus)
        case NodeRow():
            there = next((item for item in row.resources if item.resource == GPU), None)
            if there is None:
                return ""
            total, used = int(there.allocatable), int(there.used)
            opened = sum(bool(gpu.reservation) for gpu in row.gpus)
            parts = [f"{max(0, total - used)} free", f"{used - opened} held whole", *map(_free_text, row.gpus)]
            return f"{total}: {', '.join(parts)}"
        case _:
            return ""


def _free_text(gpu: SharedGpuAnswer) -> str:
    return f"{gpu.name} {gpu.free} free" + (f" ({gpu.remark})" if gpu.remark else "")


def shared_gpu_text(gpu: SharedGpuAnswer) -> str:
    """Return an opened GPU in a line: the asked pod's part, who else has parts, what is free, what reserves it."""
    others = ", ".join(f"{one.pod} {one.part}" for one in gpu.held_by) or ("no other pod" if gpu.part else "nobody")
    mine = f"{gpu.part} of {gpu.name}, shared with {others}" if gpu.part else f"{gpu.name}: held by {others}"
    reserved = f"; reserved by {gpu.reservation}" if gpu.reservation else ""
    remark = f"; {gpu.remark}" if gpu.remark else ""
    return f"{mine}; {gpu.free} free{reserved}{remark}"


def _cells(row: Row | ClusterRow) -> list[tuple[str, ...]]:
    match row:
        case ClusterRow():
            return [(row.name, str(row.position), row.recorded_at, row.state)]
        case PodRow():
            zones = ",".join(row.zones)
            return [(row.namespace, row.name, row.status, row.node, zones, row.queue, row.message)]
        case GroupRow():
            counts = map(str, (row.minimum, row.running, row.waiting, row.succeeded))
            about = (str(row.priority), row.gpus, row.created_at.partition(".")[0])
            expected = ("~" if row.expected_from == "forecast" else "") + row.expected_start.partition(".")[0]
            return [(row.namespace, row.name, row.kind, row.queue, *about, *counts, expected, row.message)]
        case NodeRow():
            counts = map(str, (len(row.zones), row.pods, row.rejections))
            return [(row.name, row.status, row.policy, row.scope, *counts, use_text(row.resources))]
        case CycleRow():
            counts = map(str, (row.pods, row.placed, row.nominated, row.evicted))
            return [(row.cycle, str(row.position), str(row.input_position), row.recorded_at, *counts)]
        case QueueRow():
            return _queue_cells(row)
        case ZoneRow():
            return _zone_cells(row)


def _queue_cells(row: QueueRow) -> list[tuple[str, ...]]:
    about = (row.name + (" (stopped)" if row.stopped else ""), row.parent, str(row.running), str(row.waiting))
    lines = [
        (
            item.resource,
            *(
                readable_amount(item.resource, amount)
                for amount in (item.quota, item.limit or "-", item.fair_share, item.allocated, item.requested)
            ),
        )
        for item in row.resources
    ]
    first, *others = lines or [("",) * 6]
    return [(*about, *first), *(("", "", "", "", *line) for line in others)]


def _zone_cells(row: ZoneRow) -> list[tuple[str, ...]]:
    return [
        (
            *(row.node, row.zone, item.resource),
            *(
                readable_amount(item.resource, amount)
                for amount in (item.allocatable, item.held, item.releasing, item.free)
            ),
            _by(row, item),
        )
        for item in row.resources
    ]


def _by(row: ZoneRow, item: ZoneAmounts) -> str:
    holders = [
        f"{pod.namespace}/{pod.name} {readable_amount(item.resource, pod.amounts[item.resource])}{_known(pod, item)}"
        for pod in row.pods
        if item.resource in pod.amounts
    ]
    unknown = [f"{row.unknown} pods of the node hold what no record tells of"] if row.unknown else []
    return ", ".join([*holders, *unknown])


def _known(pod: ZoneHolder, item: ZoneAmounts) -> str:
    """Return how it is known that a pod holds something of a zone; nothing where it was observed."""
    perhaps = pod.perhaps.get(item.resource)
    if perhaps is None:
        return "" if pod.observed else " (predicted)"
    part = "" if perhaps == pod.amounts[item.resource] else f"{readable_amount(item.resource, perhaps)} of it "
    return f" ({part}perhaps{'' if pod.observed else '; predicted elsewhere'})"


def use_text(resources: Sequence[NodeResource]) -> str:
    """Return what is in use of resources."""
    return ", ".join(
        f"{item.resource} "
        + "/".join(readable_amount(item.resource, amount) for amount in (item.used, item.allocatable))
        for item in resources
        if item.used != "0" or item.resource in ("cpu", "memory") or "/" in item.resource
    )


_PARTS = ("capacity", "locality", "topology", "share", "cost")


def dispatches_text(rows: Sequence[DispatchRow]) -> str:
    """Return a list of dispatches."""
    head = ("DISPATCH", "STAGE", "CLUSTER", "QUEUE", "SINCE", "WHY")
    return table(head, [(row.name, row.stage, row.cluster, row.queue, row.since, row.message) for row in rows])


def dispatch_lines(why: DispatchWhy) -> Iterator[str]:
    """Yield why a dispatch is where it is, and what the hub's log has of it."""
    yield f"dispatch {why.dispatch.name}: {why.verdict}, since {why.dispatch.since}"
    yield from offer_lines(why)
    if why.dispatch.cluster and why.dispatch.stage in ("Given", "Started", "Recalled"):
        yield f"which nodes: `kai get pods --cluster {why.dispatch.cluster}`, and `kai why` of one of them"
    yield "story:"
    yield from (f"  {line.position:>8}  {line.recorded_at}  {line.text}" for line in why.story)


def offer_lines(why: DispatchWhy) -> list[str]:
    """Return the clusters' offers, the parts of each from 0 to 100."""
    if not why.offers:
        return []
    head = ("CLUSTER", *(f"{part} x{why.weights[part]}" if part in why.weights else part for part in _PARTS), "SUM", "")
    rows = [
        (
            offer.cluster,
            *("" if offer.unfit else str(getattr(offer, part)) for part in _PARTS),
            "" if offer.unfit else str(offer.score),
            offer.unfit or ": ".join(filter(None, (offer.prospect, offer.why))),
        )
        for offer in why.offers
    ]
    return indent(table(head, rows), "  ").splitlines()
