"""Cycles decide as when the digests were last renewed; `tests/digest` says how to look at a difference."""

import pytest

from tests.digest.engine import ENGINE_VERSION
from tests.digest.families import IN_THE_GATE, expected, run_story


@pytest.mark.parametrize("family", IN_THE_GATE)
def test_cycles_of_a_known_engine_version_decide_as_recorded(family: str) -> None:
    stories = [run_story(family, number) for number in range(IN_THE_GATE[family])]
    before = expected().stories[family]
    assert [f"{family}/{number}" for number, one in enumerate(stories) if one.digest != before[number]] == []
    assert sum(one.decisions for one in stories) > 2 * sum(one.cycles for one in stories), "next to nothing is decided"


def test_digests_are_of_this_engine_version() -> None:
    assert expected().engine_version == ENGINE_VERSION
