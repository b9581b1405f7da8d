"""The ends of a dispatch's objects."""

from typing import Any

import pytest
from kaicore.rules.objects.dispatched import DELETED, FAILED, SUCCEEDED, ending_of


def pod(phase: str) -> dict[str, Any]:
    return {"kind": "Pod", "status": {"phase": phase}}


GROUP: dict[str, Any] = {"kind": "PodGroup", "spec": {"minMember": 2}}


@pytest.mark.parametrize(
    ("documents", "ending"),
    [
        ([GROUP, pod("Running"), pod("Succeeded")], ""),
        ([GROUP, pod("Succeeded"), pod("Succeeded")], SUCCEEDED),
        ([GROUP, pod("Succeeded"), pod("Failed")], FAILED),
        ([GROUP, None, pod("Running")], ""),
        ([None, None, None], DELETED),
        # A group that is left alone would be waited for, for good.
        ([GROUP, None, None], DELETED),
    ],
)
def test_a_dispatch_ends_when_nothing_of_it_goes_on(documents: list[dict[str, Any] | None], ending: str) -> None:
    assert ending_of(documents) == ending
