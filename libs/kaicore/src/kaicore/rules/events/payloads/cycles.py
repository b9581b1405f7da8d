"""Records of the services themselves: cycles, configurations, watchers."""

from kaicore.rules.events.payloads.base import Payload
from kaicore.rules.events.payloads.waiting import ClassPending, GroupPending


class CycleCompleted(Payload, frozen=True):
    """A cycle: what it was decided on, and what it decided.

    Attributes:
        cycle: the cycle's id, `<shard>/<number>`.
        input_position: the log's position up to which the cycle's state was folded.
        config_digest: of the configuration, recorded in full by `ConfigRecorded`.
        engine_version: of the rules.
        now: the cycle's clock, microseconds since the epoch.
        decisions_digest: SHA-256 over all decisions and reasons, stale decisions included.
        pods: how many pods waited for a decision.
        placed: how many it placed.
        pending: the classes of the others, where the reasons differ from those last recorded for the class.
        groups: the groups of the others that have reasons of their own, likewise.
        evicted: how many running pods it decided to evict.
        nominated: for how many waiting pods it decided to keep room.
    """

    cycle: str
    shard: str
    input_position: int
    config_digest: str
    engine_version: str
    now: int
    decisions_digest: str
    pods: int
    placed: int
    pending: tuple[ClassPending, ...] = ()
    groups: tuple[GroupPending, ...] = ()
    evicted: int = 0
    nominated: int = 0


class ConfigRecorded(Payload, frozen=True):
    """A scheduler's configuration in full, recorded when first used."""

    digest: str
    shard: str
    config: dict[str, object]


class ReplicasChanged(Payload, frozen=True):
    """From here on these replicas share a shard's groups; what others, or these by an older list, decide is refused.

    Attributes:
        shard: the shard.
        replicas: their names, sorted; empty where the shard has one scheduler for all of it.
    """

    shard: str
    replicas: tuple[str, ...] = ()


class WatcherStarted(Payload, frozen=True):
    """A watcher has taken over a cluster: from here on the log refuses the facts of any that came before it.

    Attributes:
        instance: which one, for people: host and process.
    """

    instance: str
