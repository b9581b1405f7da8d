"""Seals the clusters' logs from time to time, and hands the seals in where the log's writers cannot reach them.

The relay does it: it reads all of the log and has no right to write any of it, so who signs cannot change what is
signed. Each seal vouches for a chain that was computed anew from the seal before; a chain that does not lead there is
not sealed. A deposit that does not answer holds up neither the relay nor other deposits: what it misses waits for it.
A relay that starts anew takes what one deposit misses from the others, so that it is lost only if no deposit has it:
beside addresses there is to be a file (`--seal-keep-file`).
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from kaicore.errors import CorruptLog, EventsRetired, KaiError, LogUnavailable
from kaicore.ledger.feed import Retry
from kaicore.ledger.log.port import Head, Seal
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.ledger.log.seals.anchors import Anchor, Key, anchor_line, read_anchors
from kaicore.ledger.log.seals.audit import Finding, verify_since
from kaicore.ledger.log.seals.deposits import Deposit, DepositTaken
from kaicore.runtime.process_context import end_all
from kaicore.runtime.service.logs import Logger
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge

#: Seals that wait for a deposit in memory; what is more is taken from the other deposits when this one answers again.
_MOST_WAITING = 1000
#: Lines of a deposit that are looked through for a cluster's last seal.
_LOOK_BACK = 50
#: Seconds until a deposit that failed is tried again, doubled each time up to the second.
_RETRY_S, _RETRY_MAX_S = 1.0, 60.0
#: Seconds between two looks for clusters to seal.
_LOOK_S = 1.0


class SealMetrics:
    """Counts of seals."""

    def __init__(self, *, registry: CollectorRegistry = REGISTRY) -> None:

        def gauge(name: str, text: str, label: str) -> Gauge:
            return Gauge(f"kai_relay_{name}", text, [label], registry=registry)

        self.position = gauge("sealed_position", "Position of the last seal that was made", "cluster")
        self.refused = Counter(
            "kai_relay_seals_refused",
            "Times that a log was not sealed because its chain is broken",
            ["cluster"],
            registry=registry,
        )
        self.waiting = gauge("deposit_waiting", "Seals that a deposit has not taken yet", "deposit")
        self.failing = gauge("deposit_failing", "1 if a deposit did not take the last seal", "deposit")
        self.deposited = Counter(
            "kai_relay_seals_deposited", "Seals that a deposit took", ["deposit"], registry=registry
        )


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A log's chain at one time: it becomes a seal's line in each deposit.

    Attributes:
        seals: of the months that had been retired.
        at: when, microseconds since the epoch.
    """

    cluster: str
    head: Head
    seals: tuple[Seal, ...]
    at: int


class Depositor:
    """Hands checkpoints in to one deposit, in order, each when it can."""

    def __init__(self, deposit: Deposit, key: Key, *, metrics: SealMetrics, logger: Logger) -> None:
        self._deposit = deposit
        self._key = key
        self._metrics = metrics
        self._logger = logger.bind(deposit=deposit.address)
        self._waiting: deque[Checkpoint] = deque()
        self._grown = asyncio.Event()
        #: Whether it has, or waits with, all seals that the other deposits had when this began, and all since.
        self._complete = False
        self._count = -1
        self._last = ""
        self._retry = Retry(first_s=_RETRY_S, most_s=_RETRY_MAX_S)

    def take(self, checkpoint: Checkpoint) -> None:
        """Have a checkpoint handed in; returns at once."""
        self._waiting.append(checkpoint)
        while len(self._waiting) > _MOST_WAITING:
            self._waiting.popleft()
            self._complete = False
        self._metrics.waiting.labels(self._deposit.address).set(len(self._waiting))
        self._grown.set()

    async def last_of(self, cluster: str) -> Anchor | None:
        """Return a cluster's last seal there, if it is among the last ones.

        Raises:
            DepositUnavailable: it does not answer.
            InvalidObject: what is there is no seal, or not signed with our key.
        """
        return next((one for one in reversed(await self._last_anchors(_LOOK_BACK)) if one.cluster == cluster), None)

    async def _last_anchors(self, most: int) -> list[Anchor]:
        after = max(0, await self._deposit.count() - most)
        lines = await self._deposit.lines(after=after)
        return read_anchors("\n".join(lines), name=self._deposit.address, key=self._key, first=not after)

    async def _anchors_after(self, last: Mapping[str, int]) -> list[Anchor]:
        """Return the last seals there, those after the positions of another deposit's last ones among them."""
        most = _MOST_WAITING
        while True:
            anchors = await self._last_anchors(most)
            reached = {one.cluster for one in anchors if one.position <= last.get(one.cluster, 0)}
            if len(anchors) < most or (last and reached >= last.keys()):
                return anchors
            most *= 8

    async def run(self, others: Sequence["Depositor"] = ()) -> NoReturn:
        """Hand in what comes, until cancelled; first what the other deposits have and this one misses."""
        while True:
            while self._waiting or not self._complete:
                await asyncio.sleep(self._retry.remaining_s)
                try:
                    if not self._complete:
                        await self._fill_up(others)
                        continue
                    checkpoint = self._waiting[0]
                    await self._hand_in(checkpoint)
                except DepositTaken:
                    # Another relay was faster, or the answer to our own was lost.
                    self._count = -1
                except KaiError as error:
                    self._failed(error)
                else:
                    self._works(checkpoint)
            self._grown.clear()
            await self._grown.wait()

    async def _fill_up(self, others: Sequence["Depositor"]) -> None:
        last: dict[str, int] = {}
        for anchor in await self._last_anchors(_MOST_WAITING):
            last[anchor.cluster] = anchor.position
        missing: dict[tuple[str, int], Checkpoint] = {}
        for other in others:
            try:
                anchors = await other._anchors_after(last)  # noqa: SLF001 - of its own kind
            except KaiError as error:
                self._logger.warning("another deposit does not tell what is missing here", error=str(error))
                continue
            for anchor in anchors:
                if anchor.position > last.get(anchor.cluster, 0):
                    missing.setdefault((anchor.cluster, anchor.position), _checkpoint(anchor))
        known = {(one.cluster, one.head.position) for one in self._waiting}
        came = sorted((one for place, one in missing.items() if place not in known), key=lambda one: one.at)
        self._waiting.extendleft(reversed(came))
        self._complete = True
        self._metrics.waiting.labels(self._deposit.address).set(len(self._waiting))

    async def _hand_in(self, checkpoint: Checkpoint) -> None:
        if self._count < 0:
            count = await self._deposit.count()
            lines = await self._deposit.lines(after=count - 1) if count else [""]
            if count and lines[-1] == self._line(checkpoint):
                self._count, self._last = count, lines[-1]
                return
            # Somebody may have deposited between the two looks.
            self._count, self._last = (count + len(lines) - 1, lines[-1]) if count else (0, "")
        line = self._line(checkpoint)
        await self._deposit.add(line, number=self._count + 1)
        self._count, self._last = self._count + 1, line

    def _line(self, checkpoint: Checkpoint) -> str:
        return anchor_line(
            checkpoint.cluster,
            checkpoint.head,
            seals=checkpoint.seals,
            sealed_at=checkpoint.at,
            before=self._last,
            key=self._key,
        )

    def _works(self, checkpoint: Checkpoint) -> None:
        self._retry.succeeded()
        if self._waiting and self._waiting[0] is checkpoint:
            self._waiting.popleft()
        self._metrics.deposited.labels(self._deposit.address).inc()
        self._metrics.waiting.labels(self._deposit.address).set(len(self._waiting))
        self._metrics.failing.labels(self._deposit.address).set(0)

    def _failed(self, error: KaiError) -> None:
        self._retry.failed()
        self._count = -1
        self._metrics.failing.labels(self._deposit.address).set(1)
        self._logger.error("a deposit does not take seals", waiting=len(self._waiting), error=str(error))


def _checkpoint(anchor: Anchor) -> Checkpoint:
    head = Head(anchor.position, bytes.fromhex(anchor.hash), anchor.recorded_at)
    retired, cluster, at = anchor.retired_position, anchor.cluster, anchor.sealed_at
    seal = Seal(cluster, retired, retired, bytes.fromhex(anchor.retired_hash), anchor.recorded_at, "", at)
    return Checkpoint(cluster, head, (seal,) if retired else (), at)


class Sealer:
    """Seals the logs of the clusters that this relay leads."""

    def __init__(
        self,
        log: PostgresLog,
        deposits: Sequence[Deposit],
        key: Key,
        *,
        clusters: Callable[[], Sequence[str]],
        every_s: float,
        metrics: SealMetrics,
        logger: Logger,
    ) -> None:
        """Args:
        deposits: where seals go; closed at the end.
        key: with which they are signed.
        clusters: returns the clusters with logs to seal now.
        every_s: seconds between two seals.
        """
        self._log = log
        self._deposits = deposits
        self._depositors = [Depositor(one, key, metrics=metrics, logger=logger) for one in deposits]
        self._clusters = clusters
        self._every_s = every_s
        self._metrics = metrics
        self._logger = logger
        #: By cluster: where the last seal says that the log stood; None where no seal could be read.
        self._sealed: dict[str, Head | None] = {}
        self._due_s: dict[str, float] = {}

    async def run(self) -> None:
        """Seal until cancelled."""
        handing_in = [
            asyncio.create_task(one.run([other for other in self._depositors if other is not one]))
            for one in self._depositors
        ]
        loop = asyncio.get_running_loop()
        try:
            while True:
                for cluster in self._clusters():
                    if self._due_s.get(cluster, 0.0) <= loop.time():
                        self._due_s[cluster] = loop.time() + self._every_s
                        await self._seal(cluster)
                await asyncio.sleep(min(_LOOK_S, self._every_s))
        finally:
            await end_all(handing_in)
            for deposit in self._deposits:
                await deposit.close()

    async def _seal(self, cluster: str) -> None:
        try:
            since = self._sealed[cluster] if cluster in self._sealed else await self._last_seal(cluster)
            head = await self._log.head(cluster)
            seals = tuple(await self._log.seals(cluster))
            if finding := await self._finding(cluster, since, head, seals):
                self._refuse(cluster, finding)
                return
        except CorruptLog as error:
            self._refuse(cluster, error)
            return
        except (LogUnavailable, EventsRetired) as error:
            # Looked at again when the next seal is due.
            self._logger.warning("a log is not sealed now", cluster=cluster, error=str(error))
            return
        self._sealed[cluster] = head
        self._metrics.position.labels(cluster).set(head.position)
        if head == since:
            return
        for depositor in self._depositors:
            depositor.take(Checkpoint(cluster, head, seals, time.time_ns() // 1000))

    async def _finding(self, cluster: str, since: Head | None, head: Head, seals: Sequence[Seal]) -> Finding | None:
        if since is None:
            # The first seal of a log takes it as it is: `kai audit verify` looks at what is before.
            return None
        retired = seals[-1] if seals else None
        if retired is not None and retired.position > since.position:
            since = Head.at(retired)
        return await verify_since(self._log, cluster, since, head)

    def _refuse(self, cluster: str, problem: object) -> None:
        self._metrics.refused.labels(cluster).inc()
        self._logger.error("the log is broken and is not sealed", cluster=cluster, problem=str(problem))

    async def _last_seal(self, cluster: str) -> Head | None:
        """Return the newest one of all deposits: one that was away for a while may miss some."""
        last: Anchor | None = None
        for depositor in self._depositors:
            try:
                anchor = await depositor.last_of(cluster)
            except KaiError as error:
                self._logger.error("a deposit does not tell its last seals", error=str(error))
                continue
            if anchor is not None and (last is None or anchor.position > last.position):
                last = anchor
        return None if last is None else Head(last.position, bytes.fromhex(last.hash), last.recorded_at)
