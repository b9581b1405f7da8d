"""One watcher per cluster, enforced by the log: the watcher that claims last is the one, and all others are refused.

Facts of two watchers at once could reach the log in the wrong order, an older state of an object after a newer one. So
a watcher begins with an event on a stream of its own, and makes every append conditional on that stream's version.
"""

from dataclasses import dataclass

from kaicore.errors import StaleExpectation
from kaicore.kube.facts import ACTOR
from kaicore.ledger.log.port import EventLog
from kaicore.rules.events.envelope import NewEvent, Unit, derived_id
from kaicore.rules.events.payloads import WatcherStarted

STREAM = "watcher"


@dataclass(frozen=True, slots=True)
class Claim:
    """What a watcher got.

    Attributes:
        version: of the stream, which holds as long as no other watcher claims.
        position: of the claim; no other watcher's fact comes after it.
    """

    version: int
    position: int

    @property
    def expect(self) -> dict[str, int]:
        """What appends must be conditional on."""
        return {STREAM: self.version}


async def claim(log: EventLog, cluster: str, *, instance: str, now: int) -> Claim:
    """Claim a cluster.

    Args:
        log: its log.
        cluster: which one.
        instance: a name that no other process ever has.
        now: microseconds since the epoch.

    Raises:
        LogUnavailable: nothing is known of the outcome; claim again.
    """
    while True:
        version = (await log.stream_versions(cluster, [STREAM]))[STREAM]
        event = NewEvent(
            id=derived_id(cluster, "WatcherStarted", instance, str(version)),
            stream=STREAM,
            payload=WatcherStarted(instance=instance),
            actor=ACTOR,
            occurred_at=now,
            subject=instance,
        )
        try:
            (outcome,) = await log.append(cluster, [Unit((event,))], expect={STREAM: version})
        except StaleExpectation:
            continue
        return Claim(version + 1, outcome.positions[0])
