"""The manifests of the migration guides start as they are, with the scheduler's name that they have and with ours."""

from pathlib import Path

import pytest
from kaicore.rules.engine.config import EngineConfig

from tests.given.logs.simulating import brief, document_of, node, world_of

TUTORIALS = Path(__file__).parents[3] / "docs/tutorial"
GUIDES = {
    "kai": "kai-scheduler",
    "kueue": "default-scheduler",
    "volcano": "volcano",
    "koordinator": "koord-scheduler",
}


def manifests(guide: str) -> str:
    page = (TUTORIALS / f"migrate-from-{guide}.md").read_text()
    return page.partition("```yaml\n")[2].partition("```")[0]


@pytest.mark.parametrize("guide", GUIDES)
def test_the_work_of_a_guide_starts_as_a_whole_before_and_after_the_change_that_it_names(
    guide: str, tmp_path: Path
) -> None:
    before, theirs = manifests(guide), GUIDES[guide]
    assert f"schedulerName: {theirs}\n" in before
    after = before.replace(f"schedulerName: {theirs}", "schedulerName: kai-ledger")
    for text, scheduler in ((before, theirs), (after, "kai-ledger")):
        config = EngineConfig(scheduler_name=scheduler)
        for gpus, placed in ((4, 2), (2, 0)):
            world = world_of(f"{text}\n{node(gpus=gpus, zones=1)}", tmp_path, config)
            where = brief(document_of(world, config)).values()
            # Both pods or none: with room for one of two, none starts.
            assert [one.startswith("n1") for one in where].count(True) == placed, (scheduler, gpus, list(where))


@pytest.mark.parametrize("guide", GUIDES)
def test_a_guide_says_which_shadow_to_start_and_how_to_go_back(guide: str) -> None:
    page = (TUTORIALS / f"migrate-from-{guide}.md").read_text()
    assert f"--shadow {GUIDES[guide]}" in page
    assert f"**Back**: `schedulerName: {GUIDES[guide]}`" in page
