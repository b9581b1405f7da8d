"""Decisions of a shadow about the pods of another scheduler. They are never carried out."""

from kaicore.rules.events.payloads.base import Payload
from kaicore.rules.events.payloads.decisions import EvictionDecided, PodNominated, PodPlaced
from kaicore.rules.events.payloads.waiting import ClassPending, GroupPending


class ShadowDecided(Payload, frozen=True):
    """A shadow ran a cycle over all waiting pods of another scheduler: what of its answer is new.

    The cycle starts from what really is: the other scheduler's bindings, and none of the shadow's own decisions. No
    service acts on it, and it charges no node.

    Attributes:
        shard: the shadow's name, `shadow/<scheduler>`.
        scheduler: `spec.schedulerName` of the pods.
        cycle: the cycle's id, `shadow/<scheduler>/<input position>`.
        input_position: the log's position up to which the cycle's state was folded.
        config_digest: of the configuration.
        config: the configuration in full, where the state at `input_position` does not have it.
        engine_version: of the rules.
        now: the cycle's clock, microseconds since the epoch.
        pods: how many pods waited for a decision.
        placed: the pods that would go to another place than was recorded last.
        nominated: the pods for which room would be kept, likewise.
        left: uids of pods that would wait, where a place was recorded last.
        evicted: all pods that it would evict, also those that were recorded before.
        pending: classes of pods that would wait, where the reasons differ from those last recorded by this shadow.
        groups: groups of pods that would wait for reasons of their own, likewise.
        more: whether there is more that is new than fits into one event; the next cycle records it.
    """

    shard: str
    scheduler: str
    cycle: str
    input_position: int
    config_digest: str
    engine_version: str
    now: int
    pods: int
    config: dict[str, object] | None = None
    placed: tuple[PodPlaced, ...] = ()
    nominated: tuple[PodNominated, ...] = ()
    left: tuple[str, ...] = ()
    evicted: tuple[EvictionDecided, ...] = ()
    pending: tuple[ClassPending, ...] = ()
    groups: tuple[GroupPending, ...] = ()
    more: bool = False
