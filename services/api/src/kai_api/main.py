"""`kai-api`: the API as a process."""

import gc
import sys

from kaicore.analysis.inquiry.queries import Inquiry
from kaicore.runtime.service import ServiceContext, ServiceSettings, run_service
from kaicore.runtime.service.health import Later
from kaicore.runtime.service.http_server import HttpServer
from kaicore.runtime.service.log_access import LOG, open_log
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
    app = Later(context.health)
    server = HttpServer(app, host=settings.http_host, port=settings.http_port, fd=settings.http_fd)
    context.log.info("listening", address=server.address)
    await server.run_beside(context.stopping, _answer(context, settings, app))


async def _answer(context: ServiceContext, settings: ApiSettings, app: Later) -> None:
    async with open_log(context, settings.database_url) as log:
        if log is None:
            return
        inquiry = Inquiry(log)
        REGISTRY.register(KeptStates(inquiry))
        long_answers = LongAnswers(settings.database_url, at_once=settings.long_answers, most_s=settings.long_answer_s)
        # The states are long-lived and without cycles: collecting them again and again only delays answers.
        gc.set_threshold(*_GC_THRESHOLDS)
        app.app = make_app(inquiry, context.health, long_answers)
        await inquiry.follow()


def main() -> None:
    """Entry point of `kai-api`."""
    sys.exit(run_service("api", ApiSettings, serve, conditions=(LOG,), serve_health=False))


if __name__ == "__main__":
    main()
