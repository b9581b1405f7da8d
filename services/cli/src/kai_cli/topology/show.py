"""`kai topology`: the trees that a cluster's topologies make of its nodes, and what is free in them."""

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number
from kaicore.analysis.ask.topology_answers import TopologiesAnswer, TopologyQuestion
from kaicore.errors import ConfigurationError, InvalidObject, UnknownSubject

from kai_cli.output import as_of, print_data
from kai_cli.sources.answers import Answers, ask_each
from kai_cli.sources.source import AnswerSource, AtFlag, SourceFlags
from kai_cli.topology.svg import picture
from kai_cli.topology.view import MOST_ROWS, Narrowing, draw, narrowed

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
    source: SourceFlags | None = None,
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
        at: as of a moment: a position, a time (2026-11-22T02:55:00Z, 02:55Z), or a time before the log's end (-5m).
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
    try:
        answers = _of_files(list(files), wanted) if files else asyncio.run(_ask(source or AnswerSource(), wanted, at))
    except InvalidObject as error:
        raise ConfigurationError(str(error)) from error
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
