"""Questions before submitting, asked of a log."""

import asyncio

import pytest
from kaicore.analysis.inquiry.queries import Inquiry
from kaicore.analysis.simulation import Located
from kaicore.analysis.submission.submissions import MOST_WAITING, Submissions
from kaicore.errors import InvalidObject, TooManyQuestions
from kaicore.ledger.log.memory import MemoryLog
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import NewEvent, Unit

from tests.past_runs import PastRuns, busy_cluster

_POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "asked"},
    "spec": {"containers": [{"name": "main", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}]},
}


async def log_of(made: PastRuns) -> MemoryLog:
    log = MemoryLog(lambda: made.now)
    for one in made.events:
        new = NewEvent(one.id, one.stream, decode_payload(one), one.actor, one.occurred_at, one.subject)
        await log.append(made.cluster, [Unit((new,))])
    return log


@pytest.fixture
async def asked() -> Submissions:
    return Submissions(
        Inquiry(await log_of(busy_cluster(nodes=2, jobs=30, mean_s=600, load=1, seed=1))), clock=lambda: 2e9
    )


async def test_questions_about_one_cluster_wait_for_each_other_and_too_many_are_refused(asked: Submissions) -> None:
    questions = [asked.submit("test", [Located("m", _POD)]) for _ in range(MOST_WAITING + 2)]
    answers = await asyncio.gather(*questions, return_exceptions=True)
    assert [type(answer) for answer in answers].count(TooManyQuestions) == 2
    told = [answer for answer in answers if not isinstance(answer, BaseException)]
    assert len(told) == MOST_WAITING
    assert all(answer == told[0] for answer in told)
    assert (await asked.submit("test", [Located("m", _POD)])) == told[0]


async def test_a_question_about_the_past_knows_only_what_was_then(asked: Submissions) -> None:
    now = await asked.submit("test", [Located("m", _POD)])
    then = await asked.submit("test", [Located("m", _POD)], at="5")
    assert (then.position, now.position > 5) == (5, True)
    assert then.now == then.recorded_at
    assert now.now > now.recorded_at
    assert await asked.submit("test", [Located("m", _POD)]) == now


async def test_no_objects_and_too_many_are_refused(asked: Submissions) -> None:
    for count in (0, 1001):
        with pytest.raises(InvalidObject, match="must be from 1 to 1000"):
            await asked.submit("test", [Located("m", _POD)] * count)
