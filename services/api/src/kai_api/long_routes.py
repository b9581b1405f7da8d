"""Routes of the questions that take long (`kai_api.long_answers`)."""

from collections.abc import Awaitable, Mapping
from typing import Annotated, Literal

from fastapi import HTTPException, Query, Request
from fastapi.responses import Response
from kaicore.analysis.inquiry.moments import parse_moment
from kaicore.analysis.inquiry.ranges import Range, range_of
from kaicore.analysis.inquiry.replay import cycle_range
from kaicore.analysis.shadow.report import ShadowReport
from kaicore.errors import UnknownMoment
from kaicore.ledger.log.port import EventLog

from kai_api.answering import AnswerRouter, encoded
from kai_api.calibrating import Calibrations
from kai_api.history_questions import WHAT_IF_DESCRIBED, as_page, as_shadow_page, read_question
from kai_api.long_answers import NONE, Busy, ClientGone, LongAnswers, NoAnswer, Question, TookTooLong
from kai_api.replays import count_replay

#: Seconds after which a client may ask again what too many others are asking.
_RETRY_AFTER = {"Retry-After": "10"}

_From = Annotated[str | None, Query(alias="from", description="from this position or time on")]
_To = Annotated[str | None, Query(alias="to", description="up to this position or time")]


def make_long_router(  # long: a route each
    log: EventLog, long_answers: LongAnswers, calibrations: Calibrations
) -> AnswerRouter:
    """Make the routes."""
    router = AnswerRouter()

    async def ask(
        question: Question, cluster: str, request: Request, options: Mapping[str, str | None] = NONE
    ) -> Response:
        return await _answered(long_answers.ask(question, cluster, options, gone=_gone(request)))

    @router.get("/v1/clusters/{cluster}/replay")
    async def replay(
        cluster: str,
        request: Request,
        cycle: Annotated[str | None, Query(description="only this one: a number, or SHARD/NUMBER")] = None,
        since: _From = None,
        until: _To = None,
    ) -> Response:
        """Run every recorded cycle again, or those of a range, and compare."""
        wanted = await _replayed(log, cluster, cycle, since, until)
        options = {} if wanted is None else {"from": str(wanted.first), "to": str(wanted.last)}
        response = await ask(Question.REPLAY, cluster, request, options)
        if response.status_code == 200:
            count_replay(cluster, bytes(response.body))
        return response

    @router.get("/v1/clusters/{cluster}/audit")
    async def audit(cluster: str, request: Request) -> Response:
        """Check the log's chain, its gaps and its promises."""
        return await ask(Question.AUDIT, cluster, request)

    @router.post("/v1/clusters/{cluster}/what-if", openapi_extra=WHAT_IF_DESCRIBED)
    async def what_if(cluster: str, request: Request, format: Literal["json", "html"] = "json") -> Response:  # noqa: A002
        """Simulate a window of history again with something different, and compare what comes of it."""
        question = read_question(await request.body())
        response = await ask(Question.WHAT_IF, cluster, request, {"question": question})
        return as_page(response) if format == "html" and response.status_code == 200 else response

    @router.get("/v1/clusters/{cluster}/shadow-report")
    async def shadow_report(
        cluster: str,
        request: Request,
        *,
        scheduler: Annotated[str | None, Query(description="whose pods; needed where several are shadowed")] = None,
        since: _From = None,
        until: _To = None,
        simulate: Annotated[bool, Query(description="simulate the window, too; it takes most of the time")] = True,
        format: Literal["json", "html"] = "json",  # noqa: A002
    ) -> ShadowReport | Response:
        """Compare what a shadow decided with what the other scheduler did, pod by pod, and simulate the window."""
        if format == "html" and not simulate:
            raise HTTPException(400, "format: html shows the simulated window; leave out simulate=false")
        options = {"scheduler": scheduler, "from": since, "to": until, "simulate": "yes" if simulate else None}
        response = await ask(Question.SHADOW, cluster, request, options)
        return as_shadow_page(response) if format == "html" and response.status_code == 200 else response

    @router.get("/v1/clusters/{cluster}/calibration")
    async def calibration(cluster: str, request: Request, *, renew: bool = False) -> Response:
        """Return how often forecasts of starts came true; measured now where it never was, or with `renew`."""
        kept = None if renew else await calibrations.kept(cluster)
        return await _answered(calibrations.measure(cluster, gone=_gone(request))) if kept is None else encoded(kept)

    return router


async def _replayed(
    log: EventLog, cluster: str, cycle: str | None, since: str | None, until: str | None
) -> Range | None:
    """Return the range that is asked for; None for the whole log.

    It is looked up before a process is started, so that what there is not is answered at once.

    Raises:
        EventsRetired: it begins in a month that was retired.
        UnknownMoment: there is no such range, or this is no name of a cycle.
        UnknownSubject: there is no such cycle.
    """
    if cycle is not None and (since is not None or until is not None):
        raise UnknownMoment("cycle means one cycle: it goes without from and to")
    if cycle is not None:
        return await cycle_range(log, cluster, cycle)
    if since is None and until is None:
        return None
    begin, end = (None if text is None else parse_moment(text) for text in (since, until))
    return await range_of(log, cluster, since=begin, until=end)


async def _answered(question: Awaitable[object]) -> Response:
    try:
        answer = await question
    except Busy as error:
        raise HTTPException(429, str(error), headers=_RETRY_AFTER) from error
    except TookTooLong as error:
        raise HTTPException(504, str(error)) from error
    except NoAnswer as error:
        raise HTTPException(error.status, str(error)) from error
    except ClientGone:
        return Response(status_code=499)
    return Response(answer, media_type="application/json") if isinstance(answer, bytes) else encoded(answer)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
