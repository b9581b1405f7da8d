"""Pods that come with a node that they were nominated for."""

from pathlib import Path

import pytest

from tests.given.logs.simulating import brief, document_of, node, pod, world_of

LEAVING = 'deletionTimestamp: "2026-01-01T00:00:00Z"'


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        pytest.param(LEAVING, {"first": "Nominated", "thief": "Pending"}, id="while its victims are leaving"),
        pytest.param("", {"first": "Pending", "thief": "n1"}, id="not when no pod is"),
    ],
)
def test_room_that_another_scheduler_keeps_is_not_given_away(
    tmp_path: Path, metadata: str, expected: dict[str, str]
) -> None:
    on = "nodeName: n1, schedulerName: kai-ledger"
    text = (
        node(zones=1)
        + pod("victim", gpus=2, metadata=metadata, spec=on, status="{phase: Running}")
        + pod("first", gpus=4, status="{nominatedNodeName: n1}")
        + pod("thief", gpus=2)
    )
    placements = brief(document_of(world_of(text, tmp_path)))
    assert {name: placements[name].split()[0] for name in expected} == expected
