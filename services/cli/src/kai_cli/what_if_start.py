"""`kai what-if start`: when what waits is likely to start (docs/how-to/before-submitting.md)."""

import asyncio

import msgspec
from kaicore.analysis.ask.answers import GroupStart
from kaicore.analysis.trial.submission.answers import StartsAnswer
from kaicore.errors import UnknownSubject

from kai_cli.answers import Answers, ApiAnswers, open_answers
from kai_cli.printing import OutputFlag, print_answers
from kai_cli.questions import NamespaceFlag
from kai_cli.source import AnswerSource, AtFlag, SourceFlags
from kai_cli.subjects import Subject, read_subject
from kai_cli.tables import as_of


def start_command(
    subject: str,
    /,
    *,
    namespace: NamespaceFlag = None,
    at: AtFlag = "",
    source: SourceFlags | None = None,
    output: OutputFlag = "table",
) -> int:
    """Say when what waits is likely to start, from how long this cluster's pods have run.

    Args:
        subject: NAMESPACE/NAME or NAME of a pod; or KIND/NAME, such as job/train, podgroup/gang.
        namespace: of what is named without one; by default default.
        at: as of a moment: a position, a time (2026-11-22T02:55:00Z, 02:55Z), or a time before the log's end (-5m).
        source: where to ask.
        output: table, json or yaml.
    """
    answers = asyncio.run(_starts(source or AnswerSource(), read_subject(subject, namespace), at))
    if output != "table":
        print_answers(answers, output)
        return 0
    for answer in answers:
        if at:
            print(as_of(answer.position, answer.recorded_at))
        if len(answers) > 1:
            print(f"cluster {answer.cluster}:")
        print("\n".join(map(_line, answer.groups)) or "nothing of it waits")
        if answer.calibration is not None:
            print(answer.calibration.text)
    return 0


async def _starts(source: AnswerSource, subject: Subject, at: str) -> list[StartsAnswer]:
    starts: list[StartsAnswer] = []
    unknown: UnknownSubject | None = None
    async with open_answers(source, at) as (answers, clusters):
        ask = _by_api if isinstance(answers, ApiAnswers) else _by_log
        for cluster in clusters:
            try:
                starts.append(await ask(answers, cluster, subject, at))
            except UnknownSubject as error:
                unknown = error
    if not starts:
        raise unknown or UnknownSubject("the log is empty")
    return starts


async def _by_api(answers: Answers, cluster: str, subject: Subject, at: str) -> StartsAnswer:
    assert isinstance(answers, ApiAnswers)
    body = await answers.starts(cluster, subject.kind, subject.namespace, subject.name, at=at)
    return msgspec.json.decode(body, type=StartsAnswer)


async def _by_log(answers: Answers, cluster: str, subject: Subject, at: str) -> StartsAnswer:
    # Folding needs the engine, NumPy and the database's driver.
    from kaicore.analysis.ask.queries import Inquiry  # noqa: PLC0415
    from kaicore.analysis.trial.submission.start_forecasts import StartForecasts  # noqa: PLC0415

    assert isinstance(answers, Inquiry)
    return await StartForecasts(answers).starts(cluster, subject.kind, subject.namespace, subject.name, at=at)


def _line(group: GroupStart) -> str:
    return f"{group.kind.partition('.')[0]} {group.namespace}/{group.name}: {group.text}"
