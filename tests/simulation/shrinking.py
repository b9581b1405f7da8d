"""From a plan that fails to a small one that fails likewise: delta debugging over what comes and what goes wrong."""

import re
from collections.abc import Callable

import msgspec

from tests.simulation.plan import Arrival, Fault, Plan
from tests.simulation.world import run

#: Runs that are spent on one plan at most.
_MOST_RUNS = 200

#: What differs between two violations that say the same.
_PARTICULARS = re.compile(r"[0-9][-0-9.a-z]*|'[^']*'|\b(?:pod|gang|job)\w*-\w+|\b(?:single|restricted)-\w+")

Items = list[Arrival | Fault]


def signature(violation: str) -> str:
    """The kind of a violation, whatever its subject."""
    return _PARTICULARS.sub("#", violation)


def shrunk(plan: Plan, *, tell: Callable[[str], None] = lambda line: None) -> Plan:
    """Return a plan with as few arrivals and faults as still lead to the first violation of this one."""
    violations = run(plan).violations
    if not violations:
        return plan
    wanted, runs = signature(violations[0]), 1

    def fails(candidate: Plan) -> bool:
        nonlocal runs
        if runs >= _MOST_RUNS:
            return False
        runs += 1
        return wanted in {signature(violation) for violation in run(candidate).violations}

    for simpler in ({"side_writes": False}, {"lag": False}, {"skew_s": 0.0}, {"binders": 1}, {"shared": False}):
        if fails(candidate := msgspec.structs.replace(plan, **simpler)):
            plan = candidate
    items: Items = [*plan.faults, *plan.arrivals]
    parts = 2
    while len(items) >= 2 and runs < _MOST_RUNS:
        size = -(-len(items) // parts)
        for begin in range(0, len(items), size):
            fewer = items[:begin] + items[begin + size :]
            if fails(_with(plan, fewer)):
                items, parts = fewer, max(parts - 1, 2)
                break
        else:
            if size == 1:
                break
            parts = min(len(items), 2 * parts)
        tell(f"{len(items)} arrivals and faults after {runs} runs")
    return _with(plan, items)


def _with(plan: Plan, items: Items) -> Plan:
    arrivals = sorted((one for one in items if isinstance(one, Arrival)), key=lambda one: one.at)
    faults = sorted((one for one in items if isinstance(one, Fault)), key=lambda one: one.at)
    return msgspec.structs.replace(plan, arrivals=tuple(arrivals), faults=tuple(faults))
