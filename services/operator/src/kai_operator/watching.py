"""Watches of everything that the operator acts on, by kopf: each change calls for a look at the whole.

The content of an event is not used: the objects are read from the API server when the operator looks at them. So
nothing depends on the order of events, nor on their number. kopf takes every task of its event loop for its own, so it
has a loop and a thread to itself. Its handlers of events write nothing: it leaves no mark on any object.
"""

import asyncio
import logging
import sys
import threading
from collections.abc import Callable
from typing import Any

import aiohttp
from kaicore.kube.api.access import AccessSource
from kaicore.kube.operands.names import OPERAND_KINDS
from kaicore.runtime.service import ServiceContext

try:
    import kopf
except ModuleNotFoundError as error:
    if error.name != "kopf":
        raise
    sys.exit("kai-operator: kopf is not installed: pip install 'kai-ledger[operator]'")

#: Seconds after which a watch is begun anew: by the server, which takes whole ones only, and where it is silent.
_WATCH_S, _SILENT_S = 300, 600.0

#: Seconds until watches are begun anew that have ended with an error.
_AGAIN_S = 5.0

#: What is watched besides operands: group, version, plural.
_OWNERS = (("kai.scheduler", "v1", "configs"), ("kai.scheduler", "v1", "schedulingshards"))


async def watch(context: ServiceContext, source: AccessSource, namespace: str, changed: Callable[[], None]) -> None:
    """Call `changed` whenever something has changed, until the service is to stop."""
    loop = asyncio.get_running_loop()

    def told() -> None:
        loop.call_soon_threadsafe(changed)

    # What it says of signals is meant: they are the service's.
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
    while not context.stopping.is_set():
        stop = threading.Event()
        running = asyncio.ensure_future(asyncio.to_thread(_run, source, namespace, told, stop))
        stopping = asyncio.ensure_future(context.stopping.wait())
        try:
            await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.set()
            stopping.cancel()
            await asyncio.wait([running])
        if (error := running.exception()) is not None:
            context.log.warning("the watches have ended", error=f"{type(error).__name__}: {error}")
            await context.sleep(_AGAIN_S)


def _run(source: AccessSource, namespace: str, changed: Callable[[], None], stop: threading.Event) -> None:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.watching.server_timeout = _WATCH_S
    settings.watching.inactivity_timeout = _SILENT_S
    asyncio.run(
        kopf.operator(
            registry=_registry(source, changed),
            settings=settings,
            namespaces=[namespace],
            standalone=True,
            stop_flag=stop,
        )
    )


def _registry(source: AccessSource, changed: Callable[[], None]) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    async def login(**_: Any) -> kopf.AiohttpSession:
        access = await source()
        connector = aiohttp.TCPConnector(ssl=access.tls if access.tls is not None else True)
        session = aiohttp.ClientSession(connector=connector, headers=await access.headers(), proxy=access.proxy or None)
        return kopf.AiohttpSession(server=access.base_url, aiohttp_session=session)

    async def noticed(**_: Any) -> None:
        changed()

    kopf.on.login(registry=registry)(login)
    operands = (
        (group.partition("/")[2].rpartition("/")[0], group.rpartition("/")[2], plural)
        for group, plural in OPERAND_KINDS.values()
    )
    for group, version, plural in (*_OWNERS, *operands):
        kopf.on.event(group=group, version=version, plural=plural, registry=registry)(noticed)
    return registry
