"""What an operator sets about decisions; recorded in full, so that every cycle can be run again."""

from enum import StrEnum
from hashlib import sha256

import msgspec

#: Version of the rules; raised by every change that can make a cycle decide otherwise.
ENGINE_VERSION = "1"


class PlacementStrategy(StrEnum):
    """Which of the nodes that can take a pod is preferred."""

    BINPACK = "binpack"
    SPREAD = "spread"


class EngineConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of one scheduling shard.

    Attributes:
        scheduler_name: pods with this `spec.schedulerName` are ours.
        numa: whether NUMA zones are looked at at all.
        ignore_list: resources that zones report but the kubelets do not align (seed: `ignoreList`).
        reconstruct_available: free is allocatable less known placements (Appendix A); otherwise the exporter's figure.
        placement_strategy: see `PlacementStrategy`.
        bind_backoff_us: how long a pod waits after its first failed bind; doubles with each further one.
        bind_backoff_max_us: the longest such wait.
    """

    scheduler_name: str = "kai-ledger"
    numa: bool = True
    ignore_list: tuple[str, ...] = ()
    reconstruct_available: bool = True
    placement_strategy: PlacementStrategy = PlacementStrategy.BINPACK
    bind_backoff_us: int = 1_000_000
    bind_backoff_max_us: int = 300_000_000

    def document(self) -> dict[str, object]:
        """Return the configuration as plain data, for the log."""
        document: dict[str, object] = msgspec.to_builtins(self)
        return document

    def digest(self) -> str:
        """Identify the configuration."""
        return sha256(msgspec.json.encode(self.document(), order="deterministic")).hexdigest()[:16]
