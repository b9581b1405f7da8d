"""A domain of the map: its nodes, each with its zones in small."""

from dataclasses import dataclass

from kaicore.analysis.projections.capacity import Gpus, gpu_columns
from kaicore.errors import UnknownSubject
from kaicore.rules.state.cluster_state import ClusterState

from kai_api.pages.bars import Part, gpu_parts
from kai_api.pages.node_zones import NodeZonesTable, zones_table
from kai_api.pages.topology_map import rows_within

#: Nodes of one page.
PAGE_NODES = 64


@dataclass(frozen=True, slots=True)
class DomainPage:
    """Some nodes of a domain.

    Attributes:
        topology: its text; empty for nodes by name.
        path: names, the widest first.
        nodes: of this page; `total` is how many there are.
        page, pages: which page this is, from 1.
    """

    topology: str
    path: tuple[str, ...]
    gpus: Gpus
    bar: tuple[Part, ...]
    nodes: tuple[NodeZonesTable, ...]
    total: int
    page: int
    pages: int


def domain_page(state: ClusterState, *, topology: str, path: str, number: int = 1) -> DomainPage:
    """Return the model of a domain's page.

    Args:
        state: of the cluster.
        topology: its text; empty for nodes by name.
        path: names of domains with slashes between them.
        number: which page; the last one where there are not so many.

    Raises:
        UnknownSubject: there is no such domain, or it has no nodes.
    """
    rows = rows_within(state, topology, tuple(path.split("/")))
    if not len(rows):
        raise UnknownSubject(f"no nodes in {path!r} at this moment")
    pages = -(-len(rows) // PAGE_NODES)
    number = min(max(1, number), pages)
    gpus = gpu_columns(state).sum(rows)
    shown = rows[(number - 1) * PAGE_NODES : number * PAGE_NODES]
    return DomainPage(
        topology=topology,
        path=tuple(path.split("/")),
        gpus=gpus,
        bar=gpu_parts(gpus),
        nodes=tuple(zones_table(state, int(row)) for row in shown),
        total=len(rows),
        page=number,
        pages=pages,
    )
