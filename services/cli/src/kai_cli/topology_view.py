"""A topology's tree with what its domains have, as data and as a drawing."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np
from kaicore.rules.model.node import Node
from kaicore.rules.model.quantity import CPU
from kaicore.rules.queues.resources import GPU, counted
from kaicore.rules.topology.book import TopologyKey
from kaicore.rules.topology.tree import TopologyTree

_HEAD = ("DOMAIN", "LEVEL", "NODES", "CPU", "GPU")


class LevelView(msgspec.Struct):
    """A level: its names, how many domains it has, and how many nodes are in none of them."""

    name: str
    aliases: tuple[str, ...]
    labels: tuple[str, ...]
    domains: int
    outside: int


class DomainView(msgspec.Struct):
    """A domain with the allocatable amounts of its nodes, CPUs in millicores; `domains` are those within it."""

    name: str
    level: str
    nodes: int
    cpu: int
    gpu: int
    domains: list["DomainView"] = []


class TopologyView(msgspec.Struct):
    """A topology over the nodes that there are; `kind` with its API group."""

    kind: str
    name: str
    nodes: int
    levels: list[LevelView]
    problems: list[str]
    domains: list[DomainView]


def view_of(key: TopologyKey, tree: TopologyTree, nodes: Mapping[str, Node]) -> TopologyView:
    """Return a topology with what its domains have."""
    names = sorted(nodes)
    columns = tree.columns(names)
    have = [counted(nodes[name].allocatable) for name in names]
    sums = [
        columns.sums(np.array(values, np.int64))
        for values in ([1] * len(names), [one.get(CPU, 0) for one in have], [one.get(GPU, 0) for one in have])
    ]
    top: list[DomainView] = []
    above = [DomainView("", "", 0, 0, 0, top)]
    for depth, level in enumerate(columns.levels):
        here = []
        for number, path in enumerate(columns.domains[depth]):
            count, cpu, gpu = (int(one[depth][number]) for one in sums)
            domain = DomainView(path[-1], level.name, count, cpu, gpu, [])
            above[columns.parents[depth][number]].domains.append(domain)
            here.append(domain)
        above = here
    counts = zip(columns.levels, columns.domains, tree.outside, strict=True)
    levels = [
        LevelView(level.name, level.aliases, level.keys, len(domains), outside) for level, domains, outside in counts
    ]
    return TopologyView(key.kind, key.name, len(names), levels, list(tree.problems), top)


def draw(view: TopologyView, *, nodes: bool) -> str:
    """Return a topology as text; without the level of single nodes unless `nodes`."""
    lines = [f"{view.kind} {view.name}".rstrip()]
    lines += [f"  {problem}" for problem in view.problems]
    lowest = view.levels[-1]
    # A node is by itself in the lowest level wherever it is in the level above.
    told = view.levels[:-1] if len(view.levels) > 1 and not lowest.labels else view.levels
    lines += [
        f"  {level.outside} of {view.nodes} nodes are in no domain of {level.name}"
        for level in told
        if level.outside and not view.problems
    ]
    single = lowest.name if not nodes and not lowest.labels else ""
    rows = [_HEAD, *(_row(prefix, domain) for prefix, domain in _walk(view.domains, "", single))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("   ".join(cells).rstrip())
    return "\n".join([*lines, ""])


def _walk(domains: Sequence[DomainView], prefix: str, without: str) -> Iterator[tuple[str, DomainView]]:
    for index, domain in enumerate(domains):
        if domain.level == without:
            continue
        last = index == len(domains) - 1
        yield f"{prefix}{'└─ ' if last else '├─ '}", domain
        yield from _walk(domain.domains, f"{prefix}{'   ' if last else '│  '}", without)


def _row(prefix: str, domain: DomainView) -> tuple[str, ...]:
    cpu = f"{domain.cpu // 1000}" if domain.cpu % 1000 == 0 else f"{domain.cpu}m"
    return prefix + domain.name, domain.level, str(domain.nodes), cpu, str(domain.gpu)
