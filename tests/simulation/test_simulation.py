"""Runs of a few virtual seconds with faults of all kinds; `make prove` has thousands of longer ones."""

import functools
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from tests.given.examples import BEYOND_THE_GATE, FEW
from tests.given.processes.kai_commands import talking
from tests.simulation.__main__ import KEPT, crashed
from tests.simulation.hub_plan import hub_plan_of
from tests.simulation.plan import Plan, decode, encode, plan_of
from tests.simulation.plants import PLANTS
from tests.simulation.shrinking import shrunk
from tests.simulation.world import run

#: Of the runs in the gate.
_SECONDS = 1.5
#: Seeds that are tried, in portions: what any of them ever found is kept as a plan.
_SEEDS, _PORTION = (200, 20) if os.environ.get("KAI_TEST_LONG") else (6, 6)


@pytest.mark.parametrize("first", range(1, _SEEDS, _PORTION))
def test_seeds_hold_every_invariant(first: int) -> None:
    failed = {}
    for seed in range(first, first + _PORTION):
        if violations := run(plan_of(seed, seconds=_SECONDS)).violations:
            failed[f"python -m tests.simulation --seed {seed} --seconds {_SECONDS}"] = violations[:2]
    assert not failed


def test_two_clusters_under_a_hub_hold_every_invariant() -> None:
    failed = {}
    for seed in range(1, 3):
        if violations := run(hub_plan_of(seed, seconds=2.0)).violations:
            failed[f"python -m tests.simulation --hub --seed {seed} --seconds 2"] = violations[:2]
    assert not failed


@functools.cache
def _undisturbed() -> tuple[Plan, Mapping[str, int]]:
    """A plan without faults, and how many steps each role takes in it."""
    plan = msgspec.structs.replace(plan_of(8, seconds=_SECONDS), faults=())
    return plan, run(plan).steps


@pytest.mark.parametrize("role", ["projector-0", "webhook-0", "api-0"])
def test_readers_that_are_killed_at_any_await_hold_every_invariant(role: str) -> None:
    plan, all_steps = _undisturbed()
    steps = all_steps[role]
    failed = {}
    for step in range(steps // 5, steps, max(1, steps // 2)):
        if violations := run(crashed(plan, role, step)).violations:
            failed[step] = violations[:2]
    assert not failed, f"python -m tests.simulation --seed 8 --seconds {_SECONDS} --crash-everywhere {role}"


def test_one_seed_gives_one_trace_whatever_the_hash_seed() -> None:
    first = run(plan_of(8, seconds=_SECONDS))
    # A fork of a process with a hash seed of its own.
    process, said = talking("tests.simulation.__main__", "--seed", "8", "--seconds", str(_SECONDS))
    with said:
        assert f"{len(first.trace)} lines of trace, SHA-256 {first.digest[:16]}" in said.read()
    assert process.wait() == 0


@pytest.mark.parametrize("file", sorted(KEPT.glob("*.json")), ids=lambda file: file.stem)
def test_a_kept_plan_holds_and_shows_the_fault_of_the_code_that_is_planted_with_it(file: Path) -> None:
    plan = decode(file.read_bytes())
    assert run(msgspec.structs.replace(plan, plant="")).violations == []
    # Each of these was seen to fail; the gate asks only that it holds.
    assert FEW or not plan.plant or run(plan).violations


def test_each_planted_fault_has_a_plan_that_shows_it() -> None:
    assert {decode(file.read_bytes()).plant for file in KEPT.glob("*.json")} >= set(PLANTS) - {""}


def test_a_plan_is_read_as_it_was_written() -> None:
    plan = plan_of(3)
    assert decode(encode(plan)) == plan


@BEYOND_THE_GATE
def test_a_plan_that_fails_is_shrunk_to_what_makes_it_fail() -> None:
    plan: Plan = plan_of(5, seconds=0.8, plant="early-outcomes")
    assert run(plan).violations
    small = shrunk(plan)
    assert run(small).violations
    assert len(small.arrivals) + len(small.faults) < (len(plan.arrivals) + len(plan.faults)) / 2
