"""Answers as people read them in a terminal."""

from kai_cli.tables import why_text
from kaicore.analysis.inquiry.answers import Why
from kaicore.analysis.inquiry.listing import reason_answer
from kaicore.rules.engine.explain.reasons import Code
from kaicore.rules.reasons.reason import Reason

GI = 2**30
GPU = "nvidia.com/gpu"


def test_why_of_a_pod_that_waits_says_what_would_help() -> None:
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
                Reason(code=Code.TOO_SMALL, nodes=2, example="a", resource="memory", need=200 * GI, free=118 * GI)
            )
        ],
        would_help=[
            reason_answer(reason)
            for reason in (
                Reason(code=Code.FITS_IF, resource="memory", need=118 * GI, example="a"),
                Reason(code=Code.FITS_IF, resource=GPU, need=2, detail="per pod", example="a"),
                Reason(code=Code.FITS_AFTER, need=4, detail="Job default/x", example="b"),
                Reason(code=Code.FITS_AFTER, need=1, detail="Pod default/y", example="b"),
                Reason(code=Code.FITS_AFTER, need=3, example="b"),
            )
        ],
    )
    assert why_text(why).splitlines() == [
        "default/p: pending",
        "  - 2 nodes too small: memory: 200Gi needed, at most 118Gi in all (such as a)",
        "would help:",
        "  + fits if memory ≤ 118Gi (such as a)",
        "  + fits if nvidia.com/gpu ≤ 2 per pod (such as a)",
        "  + fits after Job default/x ends (its 4 pods, such as on b)",
        "  + fits after Pod default/y ends (on b)",
        "  + fits when what is leaving is gone (such as b)",
    ]
