"""Answers one long question and ends: `python -m kai_api.answer QUESTION CLUSTER [NAME=VALUE]…`.

The answer goes to standard output, as JSON.
"""

import asyncio
import os
import sys
from collections.abc import Mapping
from typing import NoReturn

import msgspec
from kaicore.analysis.ask.hours.report import ReportQuestion, usage_report
from kaicore.analysis.json_spelling import spelled
from kaicore.analysis.replay.moments import Range
from kaicore.analysis.replay.replay import audit_answer, audit_log, replay_log
from kaicore.analysis.trial.history.alternative import HistoryQuestion
from kaicore.analysis.trial.history.comparison import HistoryComparison, compare_history
from kaicore.analysis.trial.shadow import ShadowReport, shadow_report
from kaicore.analysis.trial.simulation.kubelets import find_kubelets
from kaicore.analysis.trial.submission.start_forecasts import keep_calibration, measure_calibration
from kaicore.errors import ConfigurationError, InvalidObject, KaiError, UnknownMoment
from kaicore.ledger.log.port import EventLog
from kaicore.ledger.log.postgres import QUESTION_PATIENCE_S, PostgresLog
from kaicore.rules.engine.policies.book import PolicyBook
from kaicore.runtime.policies.guard import TimeAndMemory
from kaicore.runtime.process_context import bound_to_parent
from kaicore.runtime.service.logs import configure_logging
from kaicore.runtime.shard_settings import book_of

from kai_api.answering import status_of
from kai_api.long_answers import Failure, Question

#: Below the API itself and what else has to answer soon.
_NICENESS = 10


async def _answer(question: Question, cluster: str, options: Mapping[str, str]) -> object:
    # A replay follows the record in what was left out for its time: a guard of its own might leave out more.
    guard = None if question is Question.REPLAY else TimeAndMemory()
    policies = book_of(filter(None, os.environ.get("KAI_POLICIES", "").split(",")), guard)
    async with await PostgresLog.open(
        os.environ["KAI_DATABASE_URL"],
        application=f"kai-api-{question}",
        connections=2,
        patience_s=QUESTION_PATIENCE_S,
    ) as log:
        match question:
            case Question.REPLAY:
                wanted = Range(int(options["from"]), int(options["to"])) if options else None
                return spelled(await replay_log(log, cluster, wanted, policies=policies))
            case Question.AUDIT:
                return audit_answer(await audit_log(log, cluster))
            case Question.CALIBRATION:
                answer = await measure_calibration(log, cluster, policies=policies)
                await keep_calibration(log, answer)
                return answer
            case Question.WHAT_IF:
                return await _what_if(log, cluster, options["question"], policies)
            case Question.SHADOW:
                return await _shadow(log, cluster, options, policies)
            case Question.REPORT:
                return await usage_report(log, cluster, msgspec.json.decode(options["question"], type=ReportQuestion))


async def _what_if(log: EventLog, cluster: str, question: str, policies: PolicyBook) -> HistoryComparison:
    """Simulate a window of history again.

    Raises:
        InvalidObject: the question makes no sense, or names what is not there.
        ConfigurationError: no model of kubelets is installed.
    """
    find_kubelets(None)
    try:
        asked = msgspec.json.decode(question, type=HistoryQuestion)
        return await compare_history(log, cluster, asked, find_kubelets, policies=policies)
    except UnknownMoment:
        raise
    except ConfigurationError as error:
        raise InvalidObject("question", "what-if", question[:100], str(error)) from error


async def _shadow(log: EventLog, cluster: str, options: Mapping[str, str], policies: PolicyBook) -> ShadowReport:
    """Compare what a shadow decided with what the other scheduler did.

    Raises:
        UnknownSubject: there is no such shadow in the window.
        UnknownMoment: there is no such moment.
        ConfigurationError: a simulation is asked for, and no model of kubelets is installed.
    """
    simulate = "simulate" in options
    if simulate:
        find_kubelets(None)
    return await shadow_report(
        log,
        cluster,
        find_kubelets,
        scheduler=options.get("scheduler", ""),
        since=options.get("from", ""),
        until=options.get("to", ""),
        simulate=simulate,
        policies=policies,
    )


def main() -> NoReturn:
    """Answer the question on the command line, and exit."""
    if not bound_to_parent():
        sys.exit(1)
    os.nice(_NICENESS)
    # Its standard output is the answer.
    configure_logging("api", level=os.environ.get("KAI_LOG_LEVEL", "info").lower())
    code = 0
    _, question, cluster, *options = sys.argv
    try:
        answer = asyncio.run(_answer(Question(question), cluster, dict(option.split("=", 1) for option in options)))
    except KaiError as error:
        answer, code = Failure(str(error), status_of(error)), 1
    sys.stdout.buffer.write(msgspec.json.encode(answer))
    sys.exit(code)


if __name__ == "__main__":
    sys.exit(main())
