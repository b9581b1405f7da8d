"""Forecasts for manifests that are to be submitted, and for work that waits: docs/how-to/before-submitting.md.

`kai what-if submit`, `kai what-if start`, and `kai what-if calibration`: how often such forecasts came true.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter
from kaicore.analysis.ask.answers import CalibrationAnswer
from kaicore.analysis.trial.simulation.manifest_text import Located
from kaicore.analysis.trial.submission.answers import StartsAnswer, SubmitAnswer, SubmittedGroup, SubmittedPod
from kaicore.errors import ConfigurationError
from kaicore.rules.events.reasons.base import plural

from kai_cli.asking.questions import NamespaceFlag, read_subject, with_forecasts
from kai_cli.output import OutputFlag, Progress, as_of, print_answers, print_each, table, warn
from kai_cli.sources.answers import Answers, ApiAnswers, ask_each, open_answers
from kai_cli.sources.manifests import check_submitted, read_files
from kai_cli.sources.source import ANY_ANSWER, AtFlag, SourceFlags

if TYPE_CHECKING:
    from kaicore.analysis.ask.queries import Inquiry

#: How the API calls the objects of the list that it is sent.
_ITEM = re.compile(r"request, document 1, items\[(\d+)\]")

#: Most pods of a group that the table shows.
_MOST_PODS = 20
#: Most pods that are named of those that waited before.
_MOST_OTHERS = 3


async def submit_command(
    # For `-`, which is no option.
    *files: Annotated[Path, Parameter(allow_leading_hyphen=True)],
    at: AtFlag = "",
    source: SourceFlags = ANY_ANSWER,
    output: OutputFlag = "table",
) -> int:
    """Say what would become of manifests that are submitted now: where, evicting whom, or when.

    Nothing is created. Exit code 1 where something makes no sense or would not start now.

    Args:
        files: YAML or JSON, folders of them, or - for standard input.
    """
    check_submitted(files)
    reading = read_files(list(files))
    if not reading.objects:
        problems = "\n     ".join(map(str, reading.problems)) or "no Kubernetes objects in these files"
        raise ConfigurationError(problems)
    async with open_answers(source, at) as (asked, clusters):
        if not clusters:
            raise ConfigurationError("the log is empty: there is no cluster to submit to")
        answers = await _submit(asked, clusters, reading.objects, at)
    answers = [
        msgspec.structs.replace(answer, problems=[*map(str, reading.problems), *answer.problems]) for answer in answers
    ]
    print_answers(answers, output, lambda: "\n".join(_text(one, named=len(answers) > 1, at=at) for one in answers))
    return 0 if any(answer.good for answer in answers) else 1


async def _submit(answers: Answers, clusters: Sequence[str], objects: Sequence[Located], at: str) -> list[SubmitAnswer]:
    if isinstance(answers, ApiAnswers):
        return [await _by_api(answers, cluster, objects, at) for cluster in clusters]
    # Folding needs the engine, NumPy and the database's driver.
    from kaicore.analysis.trial.submission.submit import Submissions  # noqa: PLC0415

    submissions = Submissions(answers)
    return [await submissions.submit(cluster, objects, at=at) for cluster in clusters]


async def _by_api(answers: ApiAnswers, cluster: str, objects: Sequence[Located], at: str) -> SubmitAnswer:
    manifests = {"apiVersion": "v1", "kind": "List", "items": [item.object for item in objects]}
    answer = await answers.submit(cluster, manifests, at=at)

    def in_files(lines: Iterable[str]) -> list[str]:
        return [_ITEM.sub(lambda place: objects[int(place[1])].where, line) for line in lines]

    return msgspec.structs.replace(answer, problems=in_files(answer.problems), warnings=in_files(answer.warnings))


def _text(answer: SubmitAnswer, *, named: bool, at: str) -> str:
    """Return what would become of manifests, for people; warnings and problems go to stderr."""
    warn(answer.warnings)
    sys.stderr.writelines(f"kai: {problem}\n" for problem in answer.problems)
    head = f"{as_of(answer.position, answer.recorded_at)}\n" if at else ""
    head += f"cluster {answer.cluster}:\n" if named else ""
    parts = [head + "\n\n".join(map(group_text, answer.groups))]
    if answer.others_placed and any(group.reasons for group in answer.groups):
        parts.append(_others_text(answer.others_placed))
    if answer.calibration is not None:
        parts.append(answer.calibration.text)
    elif any(group.start is not None for group in answer.groups):
        parts.append("accuracy of past forecasts: `kai what-if calibration`")
    return "\n\n".join(parts)


def _others_text(others: Sequence[SubmittedPod]) -> str:
    """Say which waiting pods the same cycle places, so that what the reasons call free is less than what was free."""
    pods = plural(len(others), "pod")
    named = ", ".join(f"{one.namespace}/{one.name} on {one.node}" for one in others[:_MOST_OTHERS])
    more = f" and {len(others) - _MOST_OTHERS} more" if len(others) > _MOST_OTHERS else ""
    return f"the same cycle places {pods} that waited before: {named}{more}; the reasons count their room as taken"


def group_text(group: SubmittedGroup) -> str:
    """Write for people what would become of a group."""
    queue = f", queue {group.queue}" if group.queue else ""
    lines = [f"{group.kind.partition('.')[0]} {group.namespace}/{group.name}{queue}: {group.message}"]
    placed = [pod for pod in group.pods if pod.node]
    if placed:
        lines.append(indent(_pods_table(placed[:_MOST_PODS]), "  "))
        lines += [f"  and {len(placed) - _MOST_PODS} more"] if len(placed) > _MOST_PODS else []
    if group.evictions:
        lines.append("  evicted for it:")
        lines += [
            f"    - {one.namespace}/{one.name} on {one.node}: {one.reason}"
            + (f"; its successor fits on {one.fits_on}" if one.fits_on else "")
            for one in group.evictions
        ]
    lines += [f"  - {reason.message}" for reason in group.reasons]
    lines += [f"  - {remedy.message}" for remedy in group.schedulable_if]
    if group.start is not None:
        lines.append(f"  {group.start.text}")
    elif group.no_start:
        lines.append(f"  no forecast of its start: {group.no_start}")
    return "\n".join([*lines, *(f"  ! {note}" for note in group.notes)])


def _pods_table(pods: Sequence[SubmittedPod]) -> str:
    rows = [[pod.name, pod.node, "+".join(pod.zones), "/".join(pod.domains.values()), _gpus_text(pod)] for pod in pods]
    head = ["POD", "NODE", "ZONES", "TOPOLOGY", "GPUS"]
    used = [place for place in range(len(head)) if place < 2 or any(row[place] for row in rows)]
    return table([head[place] for place in used], [[row[place] for place in used] for row in rows])


def _gpus_text(pod: SubmittedPod) -> str:
    return "" if isinstance(pod.gpus, msgspec.UnsetType) else ", ".join(part.text for part in pod.gpus)


async def start_command(
    subject: str,
    /,
    *,
    namespace: NamespaceFlag = None,
    at: AtFlag = "",
    source: SourceFlags = ANY_ANSWER,
    output: OutputFlag = "table",
) -> None:
    """Say when what waits is likely to start, from how long this cluster's pods have run.

    Args:
        subject: NAMESPACE/NAME or NAME of a pod; or KIND/NAME, such as job/train, podgroup/gang.
        namespace: where the subject names none; by default default.
    """
    about = read_subject(subject, namespace)

    async def ask(answers: Answers, cluster: str) -> StartsAnswer:
        return await with_forecasts(answers).starts(cluster, about.kind, about.namespace, about.name, at=at)

    print_each(await ask_each(source, at, ask), output, _starts_text, at=at)


def _starts_text(answer: StartsAnswer) -> str:
    lines = [
        f"{group.kind.partition('.')[0]} {group.namespace}/{group.name}: {group.text}" for group in answer.groups
    ] or ["nothing of it waits"]
    return "\n".join(lines if answer.calibration is None else [*lines, answer.calibration.text])


async def calibration_command(
    *, renew: bool = False, source: SourceFlags = ANY_ANSWER, output: OutputFlag = "table"
) -> None:
    """Say how often forecasts of starts came true, measured on the log itself.

    Up to 200 groups that waited are forecast again, each from the state and the history as of then, and compared with
    their real starts. The result is kept.

    Args:
        renew: measure it anew.
    """
    async with open_answers(source) as (asked, clusters):
        if not clusters:
            raise ConfigurationError("the log is empty: there is no cluster")
        answers = [
            await asked.calibration(cluster, renew=renew)
            if isinstance(asked, ApiAnswers)
            else await _calibration(asked, cluster, renew=renew)
            for cluster in clusters
        ]
    print_answers(
        answers, output, lambda: "\n".join(line for one in answers for line in _calibration_lines(one, answers))
    )


def _calibration_lines(answer: CalibrationAnswer, answers: Sequence[CalibrationAnswer]) -> Iterator[str]:
    yield (f"cluster {answer.cluster}: " if len(answers) > 1 else "") + answer.text
    if answer.undecided:
        yield f"{answer.undecided} more wait still, and not yet longer than forecast"
    if answer.left_out:
        yield f"{answer.left_out} of the sample were left out, because of what they cost"


async def _calibration(answers: "Inquiry", cluster: str, *, renew: bool) -> CalibrationAnswer:
    # Folding needs the engine, NumPy and the database's driver.
    from kaicore.analysis.trial.submission.start_forecasts import (  # noqa: PLC0415
        keep_calibration,
        kept_calibration,
        measure_calibration,
    )

    kept = None if renew else await kept_calibration(answers.log, cluster)
    if kept is not None:
        return kept
    with Progress("foretelling again") as progress:
        answer = await measure_calibration(answers.log, cluster, progress=progress, policies=answers.policies)
    await keep_calibration(answers.log, answer)
    return answer
