"""`kai mcp`: the tools of assistants, over standard input and output or over HTTP."""

import asyncio

import uvicorn
from kaicore.errors import ConfigurationError
from starlette.applications import Starlette

from kai_cli.sources.source import ANY_ANSWER, AnswerSource, SourceFlags


def mcp(*, http: str = "", source: SourceFlags = ANY_ANSWER) -> None:
    """Answer assistants over the Model Context Protocol: why work waits, who was evicted, what is free. It only reads.

    Without --http it speaks over standard input and output, as assistants on the same machine start it.

    Args:
        http: listen on this HOST:PORT, at /mcp; each request's bearer token goes to the API, so its scopes hold.
    """
    try:
        if not http:
            asyncio.run(_speak(source))
            return
        host, _, port = http.rpartition(":")
        if not host or not port.isdecimal():
            raise ConfigurationError(f"--http {http}: is no HOST:PORT")
        if source.api() is None:
            raise ConfigurationError("--http: needs an API, which knows the keys of callers; name one with --api-url")
        uvicorn.run(http_app(source, host=host), host=host, port=int(port), log_level="warning")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("mcp"):
            raise
        raise ConfigurationError("mcp is not installed: pip install 'kai-ledger[mcp]'") from error


async def _speak(source: AnswerSource) -> None:
    # A command line that serves no assistants does without the package.
    from kai_cli.asking.assistant_tools import Tools, server  # noqa: PLC0415

    tools = Tools(source)
    async with tools.opened():
        await server(tools).run_stdio_async()


def http_app(source: AnswerSource, *, host: str) -> Starlette:
    """Return the application that assistants reach over HTTP, at `/mcp`; it keeps no sessions.

    Args:
        source: of the API that is asked, with the key of each caller.
        host: on which it listens; requests for others are refused on the loopback.
    """
    from kai_cli.asking.assistant_tools import Tools, server  # noqa: PLC0415

    return server(Tools(source, callers=True)).streamable_http_app(stateless_http=True, json_response=True, host=host)
