"""`kai-webhook`: the admission webhook as a process, with its settings and the topologies of its cluster.

The topologies are followed in the log.
"""

from pathlib import Path

from kaicore.analysis.replay.log_states import events_of, restored
from kaicore.errors import ConfigurationError, KaiError
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.topology.book import EVENT_TYPES, TopologyBook
from kaicore.runtime.process_context import run_together
from kaicore.runtime.service import Service, ServiceContext
from kaicore.runtime.service.http_limits import HttpLimits
from kaicore.runtime.service.http_server import HttpServer
from kaicore.runtime.service.log_access import LOG, open_log
from kaicore.runtime.service.process import listen
from kaicore.runtime.service.settings import TlsSettings
from pydantic import Field, model_validator

from kai_webhook.app import MOST_BYTES, make_app


class WebhookSettings(TlsSettings):
    """Settings of `kai-webhook`; `http_host` and `http_port` are where it answers, health and metrics included."""

    tls_cert_file: Path = Field(description="certificate, PEM; read again when it changes")
    tls_key_file: Path = Field(description="its key, PEM")
    scheduler_name: str = Field("kai-ledger", description="spec.schedulerName of pods that are ours")
    cluster: str = Field("", description="the cluster, as the log calls it; without a log names are not looked up")
    database_url: str = Field("", description="postgresql://… of the event log, to know which topologies there are")
    gpu_sharing: bool = Field(
        False, description="complete pods that ask for a share of a GPU; as gpu_sharing in the scheduler's settings"
    )

    @model_validator(mode="after")
    def _both_or_neither(self) -> "WebhookSettings":
        if bool(self.cluster) != bool(self.database_url):
            raise ValueError("--cluster and --database-url go together: topologies are known by both or not at all")
        return self


#: Seconds between two looks whether the certificate has changed.
_RELOAD_S = 1.0
#: Seconds that one wait for new events lasts, and until a log that failed is tried again.
_WAIT_S, _PAUSE_S = 30.0, 2.0


class KnownTopologies:
    """The topologies of a cluster."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._position = 0
        #: None until they are known.
        self.book: TopologyBook | None = None

    async def follow(self, log: EventLog, context: ServiceContext) -> None:
        """Follow the log until the service is to stop; a log that fails is tried again."""
        while not context.stopping.is_set():
            try:
                await self.catch_up(log)
                await log.wait_beyond(self._cluster, self._position, timeout_s=_WAIT_S)
            except KaiError as error:
                context.log.warning("topologies cannot be followed", error=str(error))
                await context.sleep(_PAUSE_S)

    async def catch_up(self, log: EventLog) -> None:
        """Take in what the log has said since the last time.

        Raises:
            LogUnavailable: the log does not answer.
            EventsRetired: its first events have left it, and no snapshot stands for them.
            UnknownEvent: this program is too old for the log.
        """
        head = (await log.head(self._cluster)).position
        book = self.book
        if book is None:
            state = await restored(log, self._cluster)
            book, self._position = state.network_topologies, state.position
        where = Filter(types=EVENT_TYPES)
        async for event in events_of(log, self._cluster, after=self._position, upto=head, where=where):
            book.take(decode_payload(event))
            self._position = event.position
        self._position = max(self._position, head)
        # Not before: half-known objects would be reported as missing.
        self.book = book


async def serve(context: ServiceContext, settings: WebhookSettings) -> None:
    """Judge until the process is to stop."""
    known = KnownTopologies(settings.cluster)
    app = make_app(
        lambda: known.book, context.health, scheduler_name=settings.scheduler_name, gpu_sharing=settings.gpu_sharing
    )
    server = listen(context, settings, app, limits=HttpLimits(body_bytes=MOST_BYTES))
    bodies = [_keep_certificate(context, settings, server)]
    if settings.database_url:
        bodies.append(_know_topologies(context, settings, known))
    else:
        context.health.met(LOG)
    await server.run_beside(context.stopping, run_together(context.stopping, *bodies))


async def _know_topologies(context: ServiceContext, settings: WebhookSettings, known: KnownTopologies) -> None:
    async with open_log(context, settings.database_url) as log:
        if log is not None:
            await known.follow(log, context)


async def _keep_certificate(context: ServiceContext, settings: WebhookSettings, server: HttpServer) -> None:
    """Take the certificate anew whenever its files have changed, as those of a Secret do."""
    files = settings.tls_cert_file, settings.tls_key_file
    before = _versions(*files)
    while not await context.sleep(_RELOAD_S):
        now = _versions(*files)
        if now == before:
            continue
        try:
            server.reload_certificate()
        except ConfigurationError as error:
            # One file may be there before the other.
            context.log.warning("certificate cannot be used", error=str(error))
            continue
        before = now
        context.log.info("certificate taken anew")


def _versions(*files: Path) -> list[tuple[int, int, int]]:
    versions = []
    for file in files:
        try:
            status = file.stat()
        except OSError:
            versions.append((0, 0, 0))
        else:
            versions.append((status.st_mtime_ns, status.st_ino, status.st_size))
    return versions


SERVICE = Service("webhook", WebhookSettings, serve, conditions=(LOG,), serve_health=False)
main = SERVICE.main

if __name__ == "__main__":
    main()
