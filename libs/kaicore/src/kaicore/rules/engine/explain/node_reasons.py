"""Reasons of nodes that cannot take a pod of a class: for each node the first filter that it fails, counted."""

from collections.abc import Iterable
from typing import cast

import numpy as np

from kaicore.rules.engine.constraints.node_filter import NodeFilter
from kaicore.rules.events.reasons.base import NodeReason
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.numa.columns import Ints


def first_failing(filters: Iterable[NodeFilter], rows: Ints) -> tuple[Reason, ...]:
    """Return why rows fail, those of most nodes first; a row that fails no filter is in none of the reasons.

    Args:
        filters: in order; a later one is not asked about rows that fail an earlier one.
        rows: the rows.
    """
    reasons: list[NodeReason] = []
    for one in filters:
        if not len(rows):
            break
        failing = one.failing(rows)
        if np.any(failing):
            reasons += one.reasons(rows[failing])
            rows = rows[~failing]
    # Every class of NodeReason is a member of the union.
    return tuple(cast("Reason", reason) for reason in sorted(reasons, key=lambda reason: reason.sort_key))
