"""`kai what-if start` and `kai what-if calibration`: when waiting work starts, and how often such forecasts came true.

See docs/how-to/before-submitting.md.
"""

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from kaicore.analysis.ask.answers import CalibrationAnswer, GroupStart
from kaicore.analysis.trial.submission.answers import StartsAnswer
from kaicore.errors import ConfigurationError

from kai_cli.asking.questions import NamespaceFlag, with_forecasts
from kai_cli.asking.subjects import Subject, read_subject
from kai_cli.output import OutputFlag, Progress, print_answers, print_each
from kai_cli.sources.answers import Answers, ApiAnswers, ask_each, open_answers
from kai_cli.sources.source import ANY_ANSWER, AnswerSource, AtFlag, SourceFlags

if TYPE_CHECKING:
    from kaicore.analysis.ask.queries import Inquiry


def start_command(
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
    answers = asyncio.run(ask_each(source, at, partial(starts_of, subject=read_subject(subject, namespace), at=at)))
    print_each(answers, output, _text, at=at)


def _text(answer: StartsAnswer) -> str:
    lines = [_line(group) for group in answer.groups] or ["nothing of it waits"]
    return "\n".join(lines if answer.calibration is None else [*lines, answer.calibration.text])


async def starts_of(answers: Answers, cluster: str, subject: Subject, at: str = "") -> StartsAnswer:
    """Return when what waits of a subject is likely to start; `at` is a moment, empty for the log's end.

    Raises UnknownSubject: nothing is called so.
    """
    return await with_forecasts(answers).starts(cluster, subject.kind, subject.namespace, subject.name, at=at)


def _line(group: GroupStart) -> str:
    return f"{group.kind.partition('.')[0]} {group.namespace}/{group.name}: {group.text}"


def calibration_command(*, renew: bool = False, source: SourceFlags = ANY_ANSWER, output: OutputFlag = "table") -> None:
    """Say how often forecasts of starts came true, measured on the log itself.

    Up to 200 groups that waited are forecast again, each from the state and the history as of then, and compared with
    their real starts. The result is kept.

    Args:
        renew: measure it anew.
    """
    answers = asyncio.run(_measure(source, renew=renew))
    print_answers(answers, output, lambda: "\n".join(line for one in answers for line in _lines(one, answers)))


def _lines(answer: CalibrationAnswer, answers: Sequence[CalibrationAnswer]) -> Iterator[str]:
    yield (f"cluster {answer.cluster}: " if len(answers) > 1 else "") + answer.text
    if answer.undecided:
        yield f"{answer.undecided} more wait still, and not yet longer than forecast"
    if answer.left_out:
        yield f"{answer.left_out} of the sample were left out, because of what they cost"


async def _measure(source: AnswerSource, *, renew: bool) -> list[CalibrationAnswer]:
    async with open_answers(source) as (answers, clusters):
        if not clusters:
            raise ConfigurationError("the log is empty: there is no cluster")
        return [
            await answers.calibration(cluster, renew=renew)
            if isinstance(answers, ApiAnswers)
            else await _calibration(answers, cluster, renew=renew)
            for cluster in clusters
        ]


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
