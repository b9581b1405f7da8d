"""Topology assignments in the two forms of Kueue."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from kaicore.rules.topology import published
from kaicore.rules.topology.published import AssignedDomain, as_domains, as_slices

NAMES = st.text("ab-1", min_size=1, max_size=6)
DOMAINS = st.dictionaries(st.tuples(NAMES, NAMES), st.integers(1, 5), min_size=1, max_size=12)


def domains_of(assignment: dict[str, Any]) -> list[AssignedDomain]:
    """Return the domains of an assignment of either version."""
    if "domains" in assignment:
        return [AssignedDomain(tuple(one["values"]), one["count"]) for one in assignment["domains"]]
    assigned: list[AssignedDomain] = []
    for part in assignment["slices"]:
        values = [_values(level, part["domainCount"]) for level in part["valuesPerLevel"]]
        counts = part["podCounts"]
        numbers = counts.get("individual") or [counts["universal"]] * part["domainCount"]
        assigned += map(AssignedDomain, zip(*values, strict=True), numbers)
    return assigned


def _values(level: dict[str, Any], count: int) -> list[str]:
    if "universal" in level:
        return [str(level["universal"])] * count
    individual = level["individual"]
    prefix, suffix = individual.get("prefix", ""), individual.get("suffix", "")
    return [f"{prefix}{root}{suffix}" for root in individual["roots"]]


@given(DOMAINS)
def test_both_forms_say_the_same_in_order(counts: dict[tuple[str, str], int]) -> None:
    domains = [AssignedDomain(*one) for one in counts.items()]
    levels = ["block", "rack"]
    assert domains_of(as_domains(levels, domains)) == domains_of(as_slices(levels, domains)) == sorted(domains)


@given(DOMAINS)
def test_no_root_is_empty(counts: dict[tuple[str, str], int]) -> None:
    (part,) = as_slices(["block", "rack"], [AssignedDomain(*one) for one in counts.items()])["slices"]
    assert all(all(level.get("individual", {}).get("roots", ["x"])) for level in part["valuesPerLevel"])


def test_values_of_a_level_are_kept_as_prefix_suffix_and_roots() -> None:
    domains = [AssignedDomain((f"gpu-{number}.example",), 8) for number in (1, 2, 13)]
    assert as_slices(["kubernetes.io/hostname"], domains) == {
        "levels": ["kubernetes.io/hostname"],
        "slices": [
            {
                "domainCount": 3,
                "valuesPerLevel": [{"individual": {"prefix": "gpu-", "suffix": ".example", "roots": ["1", "13", "2"]}}],
                "podCounts": {"universal": 8},
            }
        ],
    }


def test_a_value_that_all_domains_have_is_kept_once() -> None:
    domains = [AssignedDomain(("b1", "r1"), 2), AssignedDomain(("b1", "r2"), 3)]
    (part,) = as_slices(["block", "rack"], domains)["slices"]
    assert part["valuesPerLevel"] == [{"universal": "b1"}, {"individual": {"prefix": "r", "roots": ["1", "2"]}}]
    assert part["podCounts"] == {"individual": [2, 3]}


def test_very_many_domains_are_in_several_slices() -> None:
    domains = [AssignedDomain((f"n{number:06}",), 1) for number in range(published._MOST_DOMAINS + 1)]
    found = as_slices(["kubernetes.io/hostname"], domains)
    assert [part["domainCount"] for part in found["slices"]] == [100_000, 1]
    assert domains_of(found) == domains


def test_domains_of_v1beta1_are_listed_one_by_one() -> None:
    assert as_domains(["rack"], [AssignedDomain(("r2",), 1), AssignedDomain(("r1",), 2)]) == {
        "levels": ["rack"],
        "domains": [{"values": ["r1"], "count": 2}, {"values": ["r2"], "count": 1}],
    }
