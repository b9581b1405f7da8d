"""`kai-api`: the API as a process."""

import sys

from kaicore.log.postgres import PostgresLog
from kaicore.service import ServiceContext, ServiceSettings, run_service
from kaicore.service.http_server import HttpServer
from pydantic import Field

from kai_api.app import make_app


class ApiSettings(ServiceSettings):
    """Settings of `kai-api`; `http_host` and `http_port` are where it answers."""

    database_url: str = Field(description="postgresql://… of the event log")


async def serve(context: ServiceContext, settings: ApiSettings) -> None:
    """Answer until told to stop."""
    async with await PostgresLog.open(settings.database_url, application="kai-api") as log:
        context.health.met("log")
        server = HttpServer(make_app(log, context.health), host=settings.http_host, port=settings.http_port)
        context.log.info("listening", address=server.address)
        await server.run(context.stopping)


def main() -> None:
    """Entry point of `kai-api`."""
    sys.exit(run_service("api", ApiSettings, serve, conditions=("log",), serve_health=False))


if __name__ == "__main__":
    main()
