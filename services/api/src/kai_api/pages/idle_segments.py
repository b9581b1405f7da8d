"""Idle segments: how many groups of whole nodes could start at once, by size and by level of a topology."""

from dataclasses import dataclass

from kaicore.analysis.inquiry.topologies import topologies_of
from kaicore.analysis.inquiry.topology_answers import DomainAnswer, TopologyQuestion
from kaicore.rules.state.cluster_state import ClusterState

#: Domains that are listed, those with most idle nodes first.
_MOST_DOMAINS = 200


@dataclass(frozen=True, slots=True)
class SegmentCell:
    """Segments of one size over all domains of a level.

    Attributes:
        count: that are idle.
        most: that there would be if every node were idle.
        share: the part of these, in hundredths.
    """

    size: int
    count: int
    most: int
    share: float


@dataclass(frozen=True, slots=True)
class SegmentLevel:
    """A level of a topology."""

    name: str
    domains: int
    cells: tuple[SegmentCell, ...]


@dataclass(frozen=True, slots=True)
class IdleDomain:
    """A domain of the narrowest level that has several nodes."""

    path: str
    nodes: int
    idle: int
    share: float


@dataclass(frozen=True, slots=True)
class SegmentTopology:
    """A topology.

    Attributes:
        name: its text.
        level: of `domains`.
        more: domains that are not listed.
    """

    name: str
    nodes: int
    sizes: tuple[int, ...]
    levels: tuple[SegmentLevel, ...]
    level: str
    domains: tuple[IdleDomain, ...]
    more: int
    problems: tuple[str, ...]


def idle_segments(state: ClusterState, *, sizes: str = "") -> tuple[SegmentTopology, ...]:
    """Return the idle segments of each topology.

    Args:
        state: of the cluster.
        sizes: such as `4,18`; by default powers of two.

    Raises:
        InvalidObject: `sizes` makes no sense.
    """
    keys = state.network_topologies.topologies()
    answer = topologies_of(state, TopologyQuestion(segments=sizes))
    made = []
    for key, topology in zip(keys, answer.topologies, strict=True):
        columns = state.network_topologies.columns(key, state.columns.names)
        present = state.columns.present[: len(state.columns.names)].astype(int)
        nodes = columns.sums(present)
        levels = []
        for depth, level in enumerate(topology.levels):
            cells = []
            for item in level.segments:
                most = int((nodes[depth] // item.size).sum())
                cells.append(SegmentCell(item.size, item.count, most, round(100 * item.count / most, 2) if most else 0))
            if any(cell.most for cell in cells):
                levels.append(SegmentLevel(level.name, level.domains, tuple(cells)))
        domains = sorted(_narrowest(topology.domains), key=lambda pair: (-pair[1].idle, pair[0]))
        made.append(
            SegmentTopology(
                name=key.text,
                nodes=topology.nodes,
                sizes=tuple(item.size for item in topology.levels[0].segments) if topology.levels else (),
                levels=tuple(levels),
                level=domains[0][1].level if domains else "",
                domains=tuple(
                    IdleDomain(path, one.nodes, one.idle, round(100 * one.idle / one.nodes, 2) if one.nodes else 0)
                    for path, one in domains[:_MOST_DOMAINS]
                ),
                more=max(0, len(domains) - _MOST_DOMAINS),
                problems=tuple(topology.problems),
            )
        )
    return tuple(made)


def _narrowest(domains: list[DomainAnswer], above: str = "") -> list[tuple[str, DomainAnswer]]:
    """Return the domains that have no other domains in them, each with its path."""
    narrowest = []
    for domain in domains:
        path = f"{above}/{domain.name}" if above else domain.name
        narrowest += _narrowest(domain.domains, path) if domain.domains else [(path, domain)]
    return narrowest
