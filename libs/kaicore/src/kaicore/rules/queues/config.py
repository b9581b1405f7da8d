"""Settings of an operator about fairness between queues."""

import msgspec

from kaicore.errors import ConfigurationError

HOUR_US = 3_600_000_000

#: How far back use is remembered, hours.
RETENTION_HOURS = 28 * 24


class FairShareConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of fairness between queues.

    Attributes:
        k_milli: how much past use counts in the division of what is beyond the quotas, in thousandths; 0 for not at
            all, 1000 as in KAI (`kValue: 1.0`).
        window_hours: how far back use counts, the hour that has begun not included.
        tumbling: windows follow one another, beginning at the epoch, instead of sliding.
        half_life_hours: after how long use counts half; 0 for always in full.
        reclaim_margin_milli: a queue may take another's beyond its own fair share only while its use over its fair
            share, times this in thousandths, is below the other's (KAI's `reclaimerUtilizationMultiplier`); at least
            1000.
        preempt_min_runtime_us: for queues where neither they nor their ancestors say; microseconds.
        reclaim_min_runtime_us: the same for reclaim.
        report_every_us: how often queues that have changed are reported at most, microseconds; 0 for never.
    """

    k_milli: int = 1000
    window_hours: int = 7 * 24
    tumbling: bool = False
    half_life_hours: int = 0
    reclaim_margin_milli: int = 1000
    preempt_min_runtime_us: int = 0
    reclaim_min_runtime_us: int = 0
    report_every_us: int = 10_000_000

    def __post_init__(self) -> None:
        """Raises: ConfigurationError: a setting that cannot work."""
        for name, lowest, highest in (
            ("k_milli", 0, 10**6),
            ("window_hours", 1, RETENTION_HOURS),
            ("half_life_hours", 0, 10 * RETENTION_HOURS),
            ("reclaim_margin_milli", 1000, 10**6),
            ("preempt_min_runtime_us", 0, 2**53),
            ("reclaim_min_runtime_us", 0, 2**53),
            ("report_every_us", 0, 2**53),
        ):
            value = getattr(self, name)
            if not lowest <= value <= highest:
                raise ConfigurationError(f"fair share: {name}: must be {lowest} to {highest}: {value}")
