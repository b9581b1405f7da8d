"""The operator's work: to look at everything whenever something has changed, and to mend what is not as it is to be."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib import resources
from pathlib import Path

import msgspec
from kaicore.backoff import backoff
from kaicore.errors import ClusterError, ConfigurationError
from kaicore.kube.api.client import KubeClient
from kaicore.kube.operands.plan import Given, plan
from kaicore.kube.operands.templates import read_templates
from kaicore.runtime.service import ServiceContext

from kai_operator.carrying_out import Hands
from kai_operator.settings import OperatorSettings

API = "api"

#: Seconds between two looks, however much changes.
_PAUSE_S = 0.2

#: Seconds until a look that failed is repeated: at first, and at most.
_RETRY_S, _RETRY_MOST_S = 0.5, 30.0


class Operator:
    """One operator, while it leads."""

    def __init__(self, context: ServiceContext, hands: Hands, given: Given, *, resync_s: float) -> None:
        """Args:
        context: of the service.
        hands: what reads and writes.
        given: what the operator was given.
        resync_s: how often everything is looked at, when nothing has changed.
        """
        self._context = context
        self._hands = hands
        self._given = given
        self._resync_s = resync_s
        self._changed = asyncio.Event()

    def changed(self) -> None:
        """Take note that there is something to look at."""
        self._changed.set()

    async def run(self, watch: Callable[[Callable[[], None]], Awaitable[None]]) -> None:
        """Work until the service is to stop.

        Args:
            watch: calls what it is given whenever something has changed, and ends when the service is to stop.
        """
        watching = asyncio.ensure_future(watch(self.changed))
        try:
            await self._keep()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _keep(self) -> None:
        failures = 0
        while not self._context.stopping.is_set():
            self._changed.clear()
            try:
                again = await self._look()
                failures = failures + 1 if again else 0
                self._context.health.met(API)
            except ClusterError as error:
                failures += 1
                self._context.health.unmet(API, str(error))
                self._context.log.warning("will be tried again", error=str(error))
            if failures:
                await self._context.sleep(backoff(failures, first=_RETRY_S, most=_RETRY_MOST_S))
            elif not await self._context.sleep(_PAUSE_S):
                await self._wait()

    async def _look(self) -> bool:
        """Look at everything once; return whether it is to be done again at once."""
        seen = await self._hands.read()
        again = False
        for part in plan(seen, self._given):
            again = await self._hands.carry_out(part, seen) or again
        return again

    async def _wait(self) -> None:
        waits = [asyncio.ensure_future(event.wait()) for event in (self._changed, self._context.stopping)]
        await asyncio.wait(waits, timeout=self._resync_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()


async def what_is_given(settings: OperatorSettings, client: KubeClient, context: ServiceContext) -> Given:
    """Read the templates, and which image the operator has itself.

    Raises:
        ConfigurationError: there is no template.
    """
    image = settings.image
    if not image and settings.pod_name:
        path = f"/api/v1/namespaces/{settings.namespace}/pods/{settings.pod_name}"
        with suppress(ClusterError):
            image = msgspec.json.decode(await client.get(path))["spec"]["containers"][0]["image"]
        if not image:
            context.log.warning("the operator's own pod cannot be read: operands have the image of their templates")
    exporter, scheduler = (
        read_templates(_template(settings.templates_dir, name)) for name in ("exporter", "scheduler")
    )
    return Given(namespace=settings.namespace, image=image, exporter=exporter, scheduler=scheduler)


def _template(directory: Path | None, name: str) -> str:
    if directory is None:
        installed = resources.files("kai_operator") / "_templates"
        root = installed if installed.is_dir() else Path(__file__).parents[4] / "deploy" / "k8s"
    else:
        root = directory
    try:
        return (root / f"{name}.yaml").read_text("utf-8")
    except OSError as error:
        raise ConfigurationError(f"--templates-dir: {root / name}.yaml: {error.strerror}") from error
