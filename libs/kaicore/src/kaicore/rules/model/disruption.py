"""Disruption budgets: how many of some pods may be evicted at once."""

import msgspec

from kaicore.rules.model.selector import PodSelector


class PodDisruptionBudget(msgspec.Struct, frozen=True, omit_defaults=True):
    """How many of some pods may be evicted now.

    Attributes:
        selector: the pods, of the budget's own namespace.
        disruptions_allowed: as its controller has last counted.
        disrupted: names of pods whose eviction was granted and that the controller has not seen go yet.
        unhealthy_may_go: `unhealthyPodEvictionPolicy: AlwaysAllow`: pods that are not ready may go in any case.
    """

    uid: str
    namespace: str
    name: str
    resource_version: str
    selector: PodSelector
    disruptions_allowed: int = 0
    disrupted: tuple[str, ...] = ()
    unhealthy_may_go: bool = False
