"""`kai what-if calibration`: how often forecasts of starts came true (docs/how-to/before-submitting.md)."""

import asyncio

import msgspec
from kaicore.analysis.ask.answers import CalibrationAnswer
from kaicore.errors import ConfigurationError

from kai_cli.answers import Answers, ApiAnswers, open_answers
from kai_cli.printing import OutputFlag, print_answers
from kai_cli.progress import Progress
from kai_cli.source import AnswerSource, SourceFlags


def calibration_command(*, renew: bool = False, source: SourceFlags | None = None, output: OutputFlag = "table") -> int:
    """Say how often forecasts of starts came true, measured on the log itself.

    Up to 200 groups that waited are forecast again, each from the state and the history as of then, and compared with
    what came. What was measured once is kept.

    Args:
        renew: measure it anew.
        source: where to ask.
        output: table, json or yaml.
    """
    answers = asyncio.run(_measure(source or AnswerSource(), renew=renew))
    if output != "table":
        print_answers(answers, output)
        return 0
    for answer in answers:
        of_cluster = f"cluster {answer.cluster}: " if len(answers) > 1 else ""
        print(f"{of_cluster}{answer.text}")
        if answer.undecided:
            print(f"{answer.undecided} more wait still, and not yet longer than forecast")
        if answer.left_out:
            print(f"{answer.left_out} of the sample were left out, because of what they cost")
    return 0


async def _measure(source: AnswerSource, *, renew: bool) -> list[CalibrationAnswer]:
    async with open_answers(source) as (answers, clusters):
        if not clusters:
            raise ConfigurationError("the log is empty: there is no cluster")
        ask = _by_api if isinstance(answers, ApiAnswers) else _by_log
        return [await ask(answers, cluster, renew=renew) for cluster in clusters]


async def _by_api(answers: Answers, cluster: str, *, renew: bool) -> CalibrationAnswer:
    assert isinstance(answers, ApiAnswers)
    return msgspec.json.decode(await answers.calibration(cluster, renew=renew), type=CalibrationAnswer)


async def _by_log(answers: Answers, cluster: str, *, renew: bool) -> CalibrationAnswer:
    # Folding needs the engine, NumPy and the database's driver.
    from kaicore.analysis.ask.queries import Inquiry  # noqa: PLC0415
    from kaicore.analysis.trial.submission.calibrations import (  # noqa: PLC0415
        keep_calibration,
        kept_calibration,
        measure_calibration,
    )

    assert isinstance(answers, Inquiry)
    kept = None if renew else await kept_calibration(answers.log, cluster)
    if kept is not None:
        return kept
    with Progress("foretelling again") as progress:
        answer = await measure_calibration(answers.log, cluster, progress=progress)
    await keep_calibration(answers.log, answer)
    return answer
