"""The outcome of a simulation for people: what is wrong stands last, where the eye is."""

from collections.abc import Iterable, Sequence

from kaicore.analysis.simulation import Outcome, PodOutcome
from kaicore.analysis.simulation.outcome import Phase
from kaicore.rules.model.pod import Amounts
from kaicore.rules.model.quantity import format_amount

_HEADER: tuple[str, ...] = ("NAMESPACE", "POD", "PHASE", "NODE", "ZONES")

#: A column that only tables with a pod of a group with a topology constraint have.
_TOPOLOGY = "TOPOLOGY"


def render_table(outcome: Outcome, *, wide: bool = False) -> str:
    """Write a table of pods, then why those without a node have none, then one line that sums up.

    Args:
        outcome: of the simulation.
        wide: also pods that had a node before.
    """
    shown = [pod for pod in outcome.pods if wide or pod.placed or pod.phase is not Phase.BOUND]
    places = [_place(pod) for pod in shown]
    rows = [_HEADER, *map(_row, shown)]
    if any(places):
        rows = [(*row, place) for row, place in zip(rows, (_TOPOLOGY, *places), strict=True)]
    lines = _columns(rows) if shown else []
    for phase in (Phase.EVICTED, Phase.REJECTED, Phase.NOMINATED, Phase.PENDING):
        lines += _explained(phase, [pod for pod in outcome.pods if pod.phase is phase])
    lines += [f"  ! {name}: {text}" for name, notes in outcome.notes.items() for text in notes]
    return "\n".join([*lines, *([""] if lines else []), _sum(outcome), ""])


def _row(pod: PodOutcome) -> tuple[str, ...]:
    zones = "; ".join(f"{zone}: {_amounts(held)}" for zone, held in pod.zones)
    return pod.namespace, pod.name, pod.phase, pod.node or "-", zones


def _place(pod: PodOutcome) -> str:
    """Return the domains of a pod's node, but for the node itself, and its rank; empty for neither."""
    path = "/".join(domain for domain in pod.domains.values() if domain != pod.node)
    return ", ".join(filter(None, (path, "" if pod.rank is None else f"rank {pod.rank}")))


def _amounts(held: Amounts) -> str:
    return ", ".join(f"{format_amount(name, amount)} {name}" for name, amount in sorted(held.items()))


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _explained(phase: Phase, pods: Iterable[PodOutcome]) -> list[str]:
    """Say why, once for pods of one owner and the same reasons."""
    groups: dict[object, list[PodOutcome]] = {}
    for pod in pods:
        groups.setdefault((pod.namespace, pod.owner, pod.reasons), []).append(pod)
    if not groups:
        return []
    lines = ["", f"{phase}:"]
    for group in groups.values():
        first = group[0]
        others = f" and {len(group) - 1} more" + (f" of {first.owner}" if first.owner else "") if len(group) > 1 else ""
        lines.append(f"  {first.namespace}/{first.name}{others}")
        lines += [f"    - {_why(phase, why.code, why.message, why.example)}" for why in first.reasons]
    return lines


def _why(phase: Phase, code: str, message: str, node: str) -> str:
    return f"{code} on {node}: {message}" if phase is Phase.REJECTED else message


def _duration(seconds: int) -> str:
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    parts = (f"{hours} h" if hours else "", f"{minutes} min" if minutes else "", f"{seconds} s" if seconds else "")
    return " ".join(part for part in parts if part)


def _sum(outcome: Outcome) -> str:
    placed = sum(pod.placed and pod.phase is Phase.BOUND for pod in outcome.pods)
    before = sum(not pod.placed and pod.phase is Phase.BOUND for pod in outcome.pods)
    counts = [f"{placed} placed"]
    for phase in (Phase.PENDING, Phase.NOMINATED, Phase.EVICTED, Phase.REJECTED):
        number = sum(pod.phase is phase for pod in outcome.pods)
        if number or phase is Phase.PENDING:
            counts.append(f"{number} {phase.lower()}")
    if before:
        counts.append(f"{before} had a node before")
    cycles = f"{outcome.cycles} cycle{'' if outcome.cycles == 1 else 's'}"
    if outcome.seconds > outcome.cycles:
        cycles += f" in {_duration(outcome.seconds)} of simulated time"
    return f"{outcome.nodes} node{'' if outcome.nodes == 1 else 's'}, {cycles}: {', '.join(counts)}"
