"""Situations in which a pod waits, one for each reason that the engine can give."""

from collections.abc import Callable
from dataclasses import dataclass

from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events.reasons.base import CodedReason
from kaicore.rules.model.pod import Pod

from tests.given.cluster.factory import Cluster


@dataclass
class Situation:
    """A cluster in which a cycle has left a pod waiting.

    `words` are what the sentence about the reason has to name: resource, place, amount.
    """

    cluster: Cluster
    pod: Pod
    words: tuple[str, ...]
    config: EngineConfig


Build = Callable[[], tuple[Cluster, Pod]]
#: By the reason that the situation shows.
SITUATIONS: dict[type[CodedReason], Callable[[], Situation]] = {}


def shows(reason: type[CodedReason], *words: str, config: EngineConfig | None = None) -> Callable[[Build], Build]:
    """Register a situation; a last cycle is run on what the function builds."""
    used = config or EngineConfig()

    def register(build: Build) -> Build:
        def situation() -> Situation:
            cluster, waiting = build()
            cluster.cycle(used)
            return Situation(cluster, waiting, words, used)

        assert reason not in SITUATIONS, reason
        SITUATIONS[reason] = situation
        return build

    return register
