"""`kai topology`: the trees that a cluster's topologies make of its nodes, and what is free in them."""

import asyncio
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number
from kaicore.analysis.ask.topology.answers import (
    DomainAnswer,
    DomainResource,
    LevelAnswer,
    SegmentCount,
    TopologiesAnswer,
    TopologyAnswer,
    TopologyQuestion,
)
from kaicore.errors import ConfigurationError, UnknownSubject
from kaicore.rules.model.quantity import readable_amount
from kaicore.spelling import did_you_mean
from msgspec.structs import replace

from kai_cli.output import aligned, as_of, print_data
from kai_cli.sources.answers import Answers, ask_each
from kai_cli.sources.source import ANY_ANSWER, AnswerSource, AtFlag, SourceFlags
from kai_cli.topology.svg import picture

#: Domains that are drawn where nothing else is said: what a person can look through.
MOST_ROWS = 100

Output = Literal["tree", "json", "yaml", "svg"]


def show(  # long: one flag for each way to look
    # For `-`, which is no option.
    *files: Annotated[Path, Parameter(allow_leading_hyphen=True)],
    topology: str = "",
    level: str = "",
    domain: str = "",
    nodes: bool = False,
    slots: str = "",
    pod: Path | None = None,
    segments: str = "",
    limit: Annotated[int, Parameter(validator=Number(gte=0))] = MOST_ROWS,
    at: AtFlag = "",
    source: SourceFlags = ANY_ANSWER,
    output: Annotated[Output, Parameter(name=["--output", "-o"])] = "tree",
) -> int:
    """Draw the trees of a cluster's topologies: what each domain uses and has free, and what still fits there.

    Args:
        files: ask these manifests instead of a cluster: YAML or JSON, folders, or - for standard input, such as what
            `kai dump` writes.
        topology: only the topologies of this name.
        level: draw down to this level, by its name or alias; by default as far as there are few enough domains.
        domain: only this domain and what is in it, such as block-1/rack-3.
        nodes: draw the single nodes too.
        slots: count the pods that fit, each of which asks for this: gpu=8,cpu=16.
        pod: count the pods that fit like the one of this manifest: its selector, affinity and tolerations count.
        segments: count the disjoint segments of so many idle nodes: 4,18; by default of powers of two.
        limit: how many domains to draw at most where no level is named; 0 for all.
        output: tree, json, yaml, or svg for a picture.
    """
    if at and files:
        raise ConfigurationError(f"--at {at}: manifests have no past")
    narrowing = Narrowing(level=level, domain=domain, nodes=nodes or output == "svg", limit=limit)
    wanted = TopologyQuestion(
        topology=topology,
        slots=slots,
        pod=_pod(pod),
        segments=segments,
        nodes=narrowing.asks_for_nodes,
    )
    answers = _of_files(list(files), wanted) if files else asyncio.run(_ask(source, wanted, at))
    if not any(answer.topologies for answer in answers):
        if files:
            raise ConfigurationError(f"no topology in {', '.join(map(str, files))}")
        where = ", ".join(answer.cluster for answer in answers)
        raise UnknownSubject(f"no topology in cluster {where}; `kai topology generate` writes one")
    answers = narrowed(answers, narrowing)
    if output == "tree":
        if at:
            print("\n".join(as_of(answer.position, answer.recorded_at) for answer in answers))
        sys.stdout.write("\n".join(draw(answer, narrowing) for answer in answers))
    elif output == "svg":
        sys.stdout.write(picture(answers))
    else:
        print_data(answers[0] if len(answers) == 1 else answers, output)
    return 1 if any(one.problems for answer in answers for one in answer.topologies) else 0


async def _ask(source: AnswerSource, wanted: TopologyQuestion, at: str) -> list[TopologiesAnswer]:
    async def ask(answers: Answers, cluster: str) -> TopologiesAnswer:
        return await answers.topologies(cluster, wanted, at=at)

    return await ask_each(source, at, ask)


def _of_files(files: list[Path], wanted: TopologyQuestion) -> list[TopologiesAnswer]:
    # Neither files nor figures are of use to a question that an API answers.
    from kai_cli.topology.files import answer_of_files  # noqa: PLC0415

    return [answer_of_files(files, wanted)]


def _pod(file: Path | None) -> str:
    if file is None:
        return ""
    from kai_cli.topology.files import pod_of_file  # noqa: PLC0415

    return pod_of_file(file)


#: What the level of single nodes may be called.
_NODE_LEVELS = frozenset({"node", "kubernetes.io/hostname", "NodeTopologyLayer"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowing:
    """The part of topologies to show.

    Attributes:
        level: down to this one; empty for as far as there are at most `limit` domains.
        domain: names with slashes between them, the last of which is the domain's own.
        nodes: down to the single nodes.
        limit: domains; 0 for all.
    """

    level: str = ""
    domain: str = ""
    nodes: bool = False
    limit: int = MOST_ROWS

    @property
    def asks_for_nodes(self) -> bool:
        """True if single nodes are to be shown."""
        return self.nodes or self.level in _NODE_LEVELS


def narrowed(answers: Sequence[TopologiesAnswer], narrowing: Narrowing) -> list[TopologiesAnswer]:
    """Return topologies with only the domain that is named, and nothing below the level that is named.

    Raises:
        UnknownSubject: no topology has the level or the domain.
        ConfigurationError: the domain's name is that of several.
    """
    shown = list(answers)
    if narrowing.domain:
        shown = _only_domain(shown, narrowing.domain)
    if narrowing.level:
        shown = _down_to(shown, narrowing.level)
    return shown


def _only_domain(answers: Sequence[TopologiesAnswer], name: str) -> list[TopologiesAnswer]:
    wanted = tuple(name.split("/"))
    shown: list[TopologiesAnswer] = []
    names: set[str] = set()
    for answer in answers:
        kept = []
        for topology in answer.topologies:
            places = dict(_places(topology.domains, ()))
            names.update("/".join(path) for path in places)
            ending = [path for path in places if path[-len(wanted) :] == wanted]
            exact = [path for path in ending if path == wanted] or ending
            if len(exact) > 1:
                several = ", ".join("/".join(path) for path in sorted(exact)[:10])
                raise ConfigurationError(f"--domain {name}: there are {len(exact)} of that name: {several}")
            kept += [replace(topology, domains=[places[path]]) for path in exact]
        shown.append(replace(answer, topologies=kept))
    if not any(answer.topologies for answer in shown):
        raise UnknownSubject(f"no domain {name!r}{did_you_mean(name, names)}")
    return shown


def _places(domains: Sequence[DomainAnswer], above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], DomainAnswer]]:
    for domain in domains:
        path = (*above, domain.name)
        yield path, domain
        yield from _places(domain.domains, path)


def _down_to(answers: Sequence[TopologiesAnswer], name: str) -> list[TopologiesAnswer]:
    shown: list[TopologiesAnswer] = []
    names: list[str] = []
    exists = False
    for answer in answers:
        kept = []
        for topology in answer.topologies:
            level = next((one for one in topology.levels if name in (one.name, *one.aliases)), None)
            names += [word for one in topology.levels for word in (one.name, *one.aliases)]
            exists = exists or level is not None
            kept.append(topology if level is None else _pruned(topology, _depth(topology, level)))
        shown.append(replace(answer, topologies=kept))
    if not exists:
        there_are = ", ".join(dict.fromkeys(names))
        raise UnknownSubject(f"no level {name!r}{did_you_mean(name, names)} (there are: {there_are})")
    return shown


def _depth(topology: TopologyAnswer, level: LevelAnswer) -> int:
    """Return how many rows of domains there are down to a level, from the domains that are shown."""
    names = [one.name for one in topology.levels]
    first = names.index(topology.domains[0].level) if topology.domains else 0
    return max(names.index(level.name) - first + 1, 1)


def _pruned(topology: TopologyAnswer, depth: int) -> TopologyAnswer:
    return replace(topology, domains=[_prune(domain, depth) for domain in topology.domains])


def _prune(domain: DomainAnswer, depth: int) -> DomainAnswer:
    return replace(domain, domains=[_prune(one, depth - 1) for one in domain.domains] if depth > 1 else [])


def draw(answer: TopologiesAnswer, narrowing: Narrowing) -> str:
    """Return topologies as text."""
    lines: list[str] = []
    if answer.cluster:
        lines.append(f"cluster {answer.cluster}, position {answer.position}")
    if answer.slot:
        asked = ", ".join(f"{resource} {readable_amount(resource, amount)}" for resource, amount in answer.slot.items())
        lines.append(f"a slot is {asked}")
    for topology in answer.topologies:
        lines += ["", *_topology(topology, narrowing)] if lines else _topology(topology, narrowing)
    return "\n".join([*lines, ""])


def _topology(topology: TopologyAnswer, narrowing: Narrowing) -> list[str]:
    lines = [f"{f'{topology.kind} {topology.name}'.rstrip()}, {topology.nodes} nodes"]
    lines += [f"  {problem}" for problem in topology.problems]
    if topology.problems and not topology.domains:
        return lines
    lines += [
        f"  {level.outside} of {topology.nodes} nodes are in no domain of {level.name}"
        for level in _levels_above_nodes(topology)
        if level.outside
    ]
    lines += aligned(_level_rows(topology))
    shown, hidden = _few_enough(topology, narrowing)
    lines += ["", *aligned([_head(shown), *(_row(prefix, one) for prefix, one in _walk(shown.domains, ""))])]
    return lines + hidden


def _levels_above_nodes(topology: TopologyAnswer) -> list[LevelAnswer]:
    """Return the levels but that of single nodes: a node is in it wherever it is in the level above."""
    single = len(topology.levels) > 1 and not topology.levels[-1].labels
    return topology.levels[:-1] if single else topology.levels


def _few_enough(topology: TopologyAnswer, narrowing: Narrowing) -> tuple[TopologyAnswer, list[str]]:
    """Return what of a topology is drawn, and the lines that say what is not."""
    if narrowing.level or narrowing.nodes or not narrowing.limit:
        return topology, []
    drawn, depth, row = 0, 0, list(topology.domains)
    while row and (not depth or drawn + len(row) <= narrowing.limit):
        drawn, depth = drawn + len(row), depth + 1
        row = [inner for domain in row for inner in domain.domains]
    if row:
        level = row[0].level
        rest = f"(and {len(row)} domains of {level}: --level {level} draws them, --domain NAME one domain)"
        return _pruned(topology, depth), [rest]
    if drawn > narrowing.limit:
        top = topology.domains[: narrowing.limit]
        return replace(topology, domains=top), [f"(and {drawn - len(top)} more; --limit 0 draws all)"]
    return topology, []


def _level_rows(topology: TopologyAnswer) -> list[tuple[str, ...]]:
    with_slots = any(level.slots is not None for level in topology.levels)
    head = ("LEVEL", "DOMAINS", *(("SLOTS", "MOST IN ONE") if with_slots else ()), "IDLE SEGMENTS")
    rows = [head]
    for level in topology.levels:
        most = f"{level.most_slots} in {'/'.join(level.most_slots_in)}" if level.most_slots else "0"
        slots = (str(level.slots), most) if with_slots else ()
        rows.append((_level_name(level), str(level.domains), *slots, _segments(level.segments)))
    return rows


def _level_name(level: LevelAnswer) -> str:
    return f"{level.name} ({', '.join(level.aliases)})" if level.aliases else level.name


def _head(topology: TopologyAnswer) -> tuple[str, ...]:
    first = topology.domains[0] if topology.domains else None
    resources = [one.resource for one in first.resources] if first is not None else []
    names = [name if "/" in name else name.upper() for name in resources]
    slots = ("SLOTS",) if first is not None and first.slots is not None else ()
    return ("DOMAIN", "LEVEL", "NODES", "IDLE", *(f"{name} USED+FREE" for name in names), *slots, "IDLE SEGMENTS")


def _row(prefix: str, domain: DomainAnswer) -> tuple[str, ...]:
    count = f"{domain.nodes}" if domain.available == domain.nodes else f"{domain.available}/{domain.nodes}"
    slots = () if domain.slots is None else (str(domain.slots),)
    amounts = (_amount(one) for one in domain.resources)
    return (prefix + domain.name, domain.level, count, str(domain.idle), *amounts, *slots, _segments(domain.segments))


def _amount(resource: DomainResource) -> str:
    used, free = (readable_amount(resource.resource, amount) for amount in (resource.used, resource.free))
    return f"{used}+{free}"


def _segments(counts: Sequence[SegmentCount]) -> str:
    """Return how many segments there are of which size, such as `6x1 3x2 1x4`."""
    return " ".join(f"{one.count}x{one.size}" for one in counts if one.count)


def _walk(domains: Sequence[DomainAnswer], prefix: str) -> Iterator[tuple[str, DomainAnswer]]:
    for index, domain in enumerate(domains):
        last = index == len(domains) - 1
        yield f"{prefix}{'└─ ' if last else '├─ '}", domain
        yield from _walk(domain.domains, f"{prefix}{'   ' if last else '│  '}")
