"""Answers as people read them in a terminal."""

from kai_cli.asking.why_page import why_text
from kaicore.analysis.ask.answers import Why
from kaicore.analysis.ask.listing import reason_answer
from kaicore.rules.events.reasons.making_room import FitsAfter, FitsIf
from kaicore.rules.events.reasons.node import NodeTooSmall

GI = 2**30
GPU = "nvidia.com/gpu"


def test_why_of_a_pod_that_waits_says_when_it_would_become_schedulable() -> None:
    why = Why(
        kind="Pod",
        cluster="c",
        position=7,
        namespace="default",
        name="p",
        uid="u",
        verdict="pending",
        reasons=[
            reason_answer(
                NodeTooSmall(nodes=2, example="a", resource="memory", requested=200 * GI, allocatable=118 * GI)
            )
        ],
        schedulable_if=[
            reason_answer(reason)
            for reason in (
                FitsIf(resource="memory", most=118 * GI, example="a"),
                FitsIf(resource=GPU, most=2, scope="per pod", example="a"),
                FitsAfter(pods=4, group="Job default/x", example="b"),
                FitsAfter(pods=1, group="Pod default/y", example="b"),
                FitsAfter(pods=3, example="b"),
            )
        ],
    )
    assert why_text(why).splitlines() == [
        "default/p: pending",
        "  - 2 nodes too small: memory: 200Gi needed, at most 118Gi in all (such as a)",
        "  + would become schedulable if memory ≤ 118Gi (such as a)",
        "  + would become schedulable if nvidia.com/gpu ≤ 2 per pod (such as a)",
        "  + would become schedulable if Job default/x ends (its 4 pods, such as on b)",
        "  + would become schedulable if Pod default/y ends (on b)",
        "  + would become schedulable when the pods that are ending are gone (such as b)",
    ]
