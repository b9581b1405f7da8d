"""Readiness of a relay: log and bus work for all clusters."""

from kaicore.runtime.service import Health
from kaicore.runtime.service.log_access import LOG

BUS = "bus"


class Readiness:
    """Sums up the clusters' troubles into the service's conditions."""

    def __init__(self, health: Health) -> None:
        self._health = health
        self._troubles: dict[str, dict[str, str]] = {LOG: {}, BUS: {}}

    def works(self, cluster: str) -> None:
        """Say that both work for a cluster."""
        for condition in (LOG, BUS):
            if self._troubles[condition].pop(cluster, None) is not None or self._health.conditions[condition]:
                self._report(condition)

    def fails(self, cluster: str, condition: str, why: str) -> None:
        """Say why one of them does not work for a cluster."""
        self._troubles[condition][cluster] = why
        self._report(condition)

    def _report(self, condition: str) -> None:
        troubles = self._troubles[condition]
        if troubles:
            self._health.unmet(condition, "; ".join(f"{cluster}: {why}" for cluster, why in sorted(troubles.items())))
        else:
            self._health.met(condition)
