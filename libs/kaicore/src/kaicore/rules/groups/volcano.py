"""Pods of Volcano's Jobs and HyperJobs: their pod set, and the highest tier within which they stay.

The tier is a field of objects, or an annotation on pods.

Source: Volcano v1.16.0-alpha.1, `NetworkTopologySpec` of `volcano.sh/apis`, and `pkg/webhooks/admission/jobs/validate`.
"""

from collections.abc import Mapping

from kaicore.rules.model.group import TopologyConstraint
from kaicore.rules.model.network_topology import HYPER_NODE

MODE = "volcano.sh/network-topology-mode"
HIGHEST_TIER = "volcano.sh/network-topology-highest-tier"

_HARD, _SOFT = "hard", "soft"

#: Python reads no number of thousands of digits, and people read no value of as many letters.
_MOST_TIER_DIGITS, _MOST_LETTERS = 10, 80


def tier_topology(*, mode: str, tier: int | None, tier_name: str, field: str) -> TopologyConstraint:
    """Return where pods are to be: as close as they can, and where it is `hard` within a HyperNode of a tier.

    Without a tier they may be anywhere, as in Volcano. A soft constraint's tier says nothing there either.

    Args:
        mode: `hard`, which is also the default, or `soft`.
        tier: the highest that is allowed; None for none.
        tier_name: the same by its name; empty for none.
        field: where this is said, for people.
    """
    if mode not in ("", _HARD, _SOFT):
        return refused_tiers(f"{field}.mode", "is neither hard nor soft", mode)
    if tier is not None and tier_name:
        return refused_tiers(f"{field}.highestTierName", "excludes highestTierAllowed", tier_name)
    if tier is not None and tier < 0:
        return refused_tiers(f"{field}.highestTierAllowed", "is no tier of 0 or more", tier)
    level = "" if mode == _SOFT else tier_name if tier is None else str(tier)
    by = "highestTierName" if tier is None else "highestTierAllowed"
    return TopologyConstraint(required=level, field=f"{field}.{by}" if level else "", kind=HYPER_NODE, closest=True)


def annotated_tiers(annotations: Mapping[str, str], *, where: str = "metadata") -> TopologyConstraint | None:
    """Return what annotations on pods, or on their template, say of it; None where they say nothing.

    Args:
        annotations: of a pod, or of a pod template.
        where: the metadata that they stand in, for people.
    """
    mode, tier = annotations.get(MODE), annotations.get(HIGHEST_TIER)
    if mode is None and tier is None:
        return None
    if mode not in (None, "", _HARD, _SOFT):
        return refused_tiers(f"{where}.annotations[{MODE}]", "is neither hard nor soft", mode)
    if tier and not (tier.isdecimal() and len(tier) <= _MOST_TIER_DIGITS):
        return refused_tiers(f"{where}.annotations[{HIGHEST_TIER}]", "is no tier of 0 or more", tier)
    level = str(int(tier)) if tier and mode != _SOFT else ""
    field = f"{where}.annotations[{HIGHEST_TIER}]" if level else ""
    return TopologyConstraint(required=level, field=field, kind=HYPER_NODE, closest=True)


def refused_tiers(field: str, problem: str, value: object) -> TopologyConstraint:
    """Return the constraint of a set with an impossible place in the network."""
    given = value[:_MOST_LETTERS] if isinstance(value, str) else value
    return TopologyConstraint(kind=HYPER_NODE, problem=f"{field}: {problem}: {given!r}")
