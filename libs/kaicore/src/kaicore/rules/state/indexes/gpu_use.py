"""GPU time that pods have had: of namespaces by the hour, and in total of groups of which pods have ended.

It is folded always, whatever a shard's settings are, so that policies can look at it (`kaicore.policy.Policy.history`)
and a replay has the same. GPUs count in thousandths of one, so that shares add up.
"""

from collections.abc import Mapping

import msgspec

from kaicore.rules.model.gpu_share import GPU
from kaicore.rules.queues.division import HOUR_US, RETENTION_HOURS, USAGE_SCALE, FairShareConfig
from kaicore.rules.queues.usage import UsageReader, UseHistory

#: Groups of which the total is kept: those of which a pod ended last.
_MOST_GROUPS = 4096
#: What a snapshot holds has 64 bits.
_MOST = 1 << 62


class NamespaceUse(msgspec.Struct):
    """The GPU time of a namespace as plain data; `hours` in order."""

    namespace: str
    gpus: int
    settled_ms: int
    hours: list[tuple[int, int]]

    def history(self) -> UseHistory:
        """Return it as histories are kept."""
        rate, hours = {GPU: self.gpus} if self.gpus else {}, {GPU: dict(self.hours)} if self.hours else {}
        return UseHistory(rate, self.settled_ms, hours)


class GroupUse(msgspec.Struct):
    """The GPU time of a group's pods that have ended, in thousandths of GPUs times milliseconds."""

    key: str
    total: int


class GpuUseRecord(msgspec.Struct):
    """All of it, for snapshots."""

    namespaces: list[NamespaceUse] = []
    groups: list[GroupUse] = []
    forgotten_at: int = 0


class GpuUse:
    """The GPU time of namespaces and groups."""

    def __init__(self, record: GpuUseRecord | None = None) -> None:
        """Args: record: what a snapshot has."""
        record = record or GpuUseRecord()
        self._namespaces = {one.namespace: one.history() for one in record.namespaces}
        #: The group of which a pod ended last comes last.
        self._groups = {one.key: one.total for one in record.groups}
        self._forgotten_at = record.forgotten_at
        self._reader: UsageReader[str] = UsageReader()

    def change(self, namespace: str, gpus: int, *, at_us: int) -> None:
        """Take in that pods of a namespace hold more GPUs from now on, or fewer.

        Args:
            gpus: thousandths; negative for fewer.
            at_us: recorded time, microseconds since the epoch.
        """
        hour = at_us // HOUR_US
        if hour != self._forgotten_at:
            self._forgotten_at = hour
            for name in [one for one, use in self._namespaces.items() if use.forget(hour - RETENTION_HOURS)]:
                del self._namespaces[name]
        history = self._namespaces.get(namespace)
        if history is None:
            history = self._namespaces[namespace] = UseHistory(settled_ms=at_us // 1000)
        history.change({GPU: abs(gpus)}, sign=1 if gpus > 0 else -1, at_us=at_us)

    def ended(self, key: str, gpus: int, *, ran_us: int) -> None:
        """Take in that a pod of a group has ended, or was evicted.

        Args:
            key: of the group, or of what owns a pod that is a group of its own.
            gpus: that the pod held, in thousandths.
            ran_us: for how long it ran.
        """
        total = self._groups.pop(key, 0) + gpus * (max(ran_us, 0) // 1000)
        self._groups[key] = min(total, _MOST)
        while len(self._groups) > _MOST_GROUPS:
            del self._groups[next(iter(self._groups))]

    def seconds_of(self, key: str) -> int:
        """Return the GPU-seconds of a group's pods that have ended."""
        return self._groups.get(key, 0) // 1_000_000

    def of_namespaces(
        self, config: FairShareConfig, *, gpus: int, since_us: int, recorded_us: int, now_us: int
    ) -> Mapping[str, int]:
        """Return the past use of each namespace, in millionths of the cluster's GPUs.

        Args:
            config: which hours count, and how much.
            gpus: that the cluster has, in thousandths.
            since_us, recorded_us, now_us: see `UsageReader.parts`.
        """
        parts = self._reader.parts(
            self._namespaces,
            config,
            totals={GPU: gpus},
            since_us=since_us,
            recorded_us=recorded_us,
            now_us=now_us,
        )
        return {name: used.get(GPU, 0) * 1_000_000 // USAGE_SCALE for name, used in parts.items()}

    def record(self) -> GpuUseRecord:
        """Return all, for snapshots."""
        return GpuUseRecord(
            [
                NamespaceUse(name, use.rate.get(GPU, 0), use.settled_ms, sorted(use.hours.get(GPU, {}).items()))
                for name, use in sorted(self._namespaces.items())
            ],
            list(map(GroupUse, self._groups, self._groups.values())),
            self._forgotten_at,
        )
