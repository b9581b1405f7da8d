"""Answers one long question and ends: `python -m kai_api.answer QUESTION CLUSTER`; JSON on standard output."""

import asyncio
import os
import sys

import msgspec
from kaicore.analysis.inquiry.audit import audit_log
from kaicore.analysis.inquiry.replay import replay_log
from kaicore.analysis.inquiry.reports import audit_answer, replay_answer
from kaicore.analysis.submission.calibrations import keep_calibration, measure_calibration
from kaicore.errors import KaiError
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.runtime.service.process import bound_to_parent

from kai_api.error_statuses import status_of
from kai_api.long_answers import Failure, Question

#: Below the API itself and what else has to answer soon.
_NICENESS = 10


async def _answer(question: Question, cluster: str) -> object:
    async with await PostgresLog.open(
        os.environ["KAI_DATABASE_URL"], application=f"kai-api-{question}", connections=2
    ) as log:
        match question:
            case Question.REPLAY:
                return replay_answer(await replay_log(log, cluster))
            case Question.AUDIT:
                return audit_answer(await audit_log(log, cluster))
            case Question.CALIBRATION:
                answer = await measure_calibration(log, cluster)
                await keep_calibration(log, answer)
                return answer


def main() -> int:
    """Answer the question on the command line."""
    if not bound_to_parent():
        return 1
    os.nice(_NICENESS)
    code = 0
    try:
        answer = asyncio.run(_answer(Question(sys.argv[1]), sys.argv[2]))
    except KaiError as error:
        answer, code = Failure(str(error), status_of(error)), 1
    sys.stdout.buffer.write(msgspec.json.encode(answer))
    return code


if __name__ == "__main__":
    sys.exit(main())
