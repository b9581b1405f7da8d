"""`kai-api`: the API as a process."""

import asyncio
import gc
import sys
from contextlib import suppress

from kaicore.inquiry.asking import Inquiry
from kaicore.log.postgres import PostgresLog
from kaicore.service import ServiceContext, ServiceSettings, run_service
from kaicore.service.http_server import HttpServer
from prometheus_client import REGISTRY
from pydantic import Field

from kai_api.app import make_app
from kai_api.kept_states import KeptStates
from kai_api.long_answers import LongAnswers

_GC_THRESHOLDS = (50_000, 20, 100)


class ApiSettings(ServiceSettings):
    """Settings of `kai-api`; `http_host` and `http_port` are where it answers."""

    database_url: str = Field(description="postgresql://… of the event log")
    long_answers: int = Field(2, ge=1, description="replays and audits at a time, each in a process of its own")
    long_answer_s: float = Field(900, gt=0, description="seconds that a replay or an audit may take")


async def serve(context: ServiceContext, settings: ApiSettings) -> None:
    """Answer until told to stop."""
    async with await PostgresLog.open(settings.database_url, application="kai-api") as log:
        context.health.met("log")
        inquiry = Inquiry(log)
        REGISTRY.register(KeptStates(inquiry))
        long_answers = LongAnswers(settings.database_url, at_once=settings.long_answers, most_s=settings.long_answer_s)
        app = make_app(inquiry, context.health, long_answers)
        server = HttpServer(app, host=settings.http_host, port=settings.http_port, fd=settings.http_fd)
        context.log.info("listening", address=server.address)
        # The states are long-lived and without cycles: collecting them again and again only delays answers.
        gc.set_threshold(*_GC_THRESHOLDS)
        following = asyncio.create_task(inquiry.follow())
        try:
            await server.run(context.stopping)
        finally:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following


def main() -> None:
    """Entry point of `kai-api`."""
    sys.exit(run_service("api", ApiSettings, serve, conditions=("log",), serve_health=False))


if __name__ == "__main__":
    main()
