"""Records of the services: cycles, configurations, watchers, outcomes of decisions, and erased or quarantined data."""

import msgspec

from kaicore.rules.events.payloads.base import Payload, PodPayload
from kaicore.rules.events.payloads.decisions import ClassPending, GroupPending


class PolicyLeftOut(Payload, frozen=True):
    """A policy that a cycle left out.

    Attributes:
        policy: its name.
        why: see `kaicore.rules.engine.policies.guarded.PolicyFailure`.
        detail: the point, and what was wrong; without messages of errors, which differ between machines.
    """

    policy: str
    why: str
    detail: str = ""


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
        policies_left_out: the policies that failed, in the order in which they did; the cycle was run without them.
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
    policies_left_out: tuple[PolicyLeftOut, ...] = ()


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


class PolicyInputRecorded(Payload, frozen=True):
    """Somebody recorded a fact from outside that policies may look at: a price, power, maintenance.

    Attributes:
        name: of the fact.
        node: that it is about; empty for the whole cluster.
        value: a number or a short text; None takes the fact away.
        by: who recorded it.
    """

    name: str
    node: str = ""
    value: int | str | None = None
    by: str = ""


class WatcherStarted(Payload, frozen=True):
    """A watcher has taken over a cluster: from here on the log refuses the facts of any that came before it.

    Attributes:
        instance: which one, for people: host and process.
    """

    instance: str


class PodBound(PodPayload, frozen=True):
    """The API server took the binding."""

    attempts: int = 1


class BindFailed(PodPayload, frozen=True):
    """The API server refused the binding for good, or did not take it in time; the pod is free again.

    Attributes:
        code: HTTP status, 0 when there was none.
        gone: the pod exists no more, or is another pod's successor of the same name.
    """

    code: int
    reason: str
    message: str = ""
    attempts: int = 1
    gone: bool = False


class PodEvicted(PodPayload, frozen=True):
    """The API server took the eviction: the pod ends, and its controller makes another."""

    attempts: int = 1


class EvictionFailed(PodPayload, frozen=True):
    """The API server refused the eviction for good, or did not take it in time.

    Attributes:
        code: HTTP status, 0 when there was none; 429 is a disruption budget that forbade it.
        gone: the pod exists no more, or is another pod's successor of the same name.
    """

    code: int
    reason: str
    message: str = ""
    attempts: int = 1
    gone: bool = False


class ErasedEvent(msgspec.Struct, frozen=True):
    """An event from which something was erased.

    Attributes:
        mark: what its body is marked with (`kaicore.ledger.log.chain.erasure_mark`): a digest over the hash of the
            event before it, its own hash as it was recorded, and all of it that is left.
    """

    position: int
    mark: str


class FieldsErased(Payload, frozen=True):
    """The log's owner erased the personal data of pods that had one name: name, labels, annotations.

    The events that are named keep the hashes with which they were recorded.

    Attributes:
        uids: of the pods.
        pseudonym: what they are called from then on.
        events: from which something was erased, in order; the last record that names a position counts.
        reason: why, as whoever did it said.
    """

    uids: tuple[str, ...]
    namespace: str
    pseudonym: str
    events: tuple[ErasedEvent, ...]
    reason: str = ""


class EventSetAside(Payload, frozen=True):
    """The log's owner set aside an event that cannot be decoded: it counts as if it said nothing.

    Attributes:
        position: of that event.
        stream: of that event; decisions about its node or pod are made again.
        hash: of that event, in hexadecimal.
        reason: why it is there and may be left out, as whoever did it said.
    """

    position: int
    stream: str
    hash: str
    reason: str


class MonthSealed(Payload, frozen=True):
    """The log's owner sealed the account of a month that is over; a later one of the same month corrects it.

    Attributes:
        month: as `2026-11`, by UTC.
        position: of the last event that counts.
        rules: version of the account's rules (`kaicore.analysis.hours.account.ACCOUNT_SCHEMA`).
        digest: SHA-256 over the whole account, in hexadecimal.
        figures: of GPUs, in thousandths of GPU-seconds, by name; what each queue held as `queue/NAME`.
        corrects: position of the seal that this one corrects; 0 for the first.
        reason: why it is corrected, as whoever did it said.
    """

    month: str
    position: int
    rules: int
    digest: str
    figures: dict[str, int]
    corrects: int = 0
    reason: str = ""


class Undecodable(Payload, frozen=True):
    """Stands for the payload of an event that has none of its type; it is never recorded.

    Attributes:
        error: what is wrong with the body.
    """

    error: str
