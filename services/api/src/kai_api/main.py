"""`kai-api`: the API as a process."""

import sys

from kaicore.log.postgres import PostgresLog
from kaicore.service import ServiceContext, ServiceSettings, run_service
from kaicore.service.http import serve_app
from pydantic import Field

from kai_api.app import make_app


class ApiSettings(ServiceSettings):
    """Settings of `kai-api`; `http_host` and `http_port` are where it answers."""

    database_url: str = Field(description="postgresql://… of the event log")


async def serve(context: ServiceContext, settings: ApiSettings) -> None:
    """Answer until told to stop."""
    async with await PostgresLog.open(settings.database_url, application="kai-api") as log:
        context.health.met("log")
        app = make_app(log, context.health)
        await serve_app(app, host=settings.http_host, port=settings.http_port, stopping=context.stopping)


def main() -> None:
    """Entry point of `kai-api`."""
    sys.exit(run_service("api", ApiSettings, serve, conditions=("log",), serve_health=False))


if __name__ == "__main__":
    main()
