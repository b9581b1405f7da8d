"""Whatever stands in a manifest that is asked about is answered for or named, and the cluster stays as it is."""

from functools import lru_cache
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from kaicore.analysis.trial.simulation import Located
from kaicore.analysis.trial.submission.answers import SubmitAnswer
from kaicore.analysis.trial.submission.submit import submit
from kaicore.rules.deciding.forecast.runs import RunHistory
from kaicore.rules.state.indexes.past_runs import Basis
from kaicore.rules.state.snapshot import decode_state, encode_state

from tests.given.cluster.factory import amounts, pod
from tests.given.examples import examples
from tests.given.work.past_runs import SECOND, PastRuns
from tests.property.test_simulate_input import FIELDS, JUNK, OBJECTS, Path, replaced


@lru_cache(maxsize=1)
def cluster() -> tuple[bytes, RunHistory, int]:
    """A node that is full, one that is free, and a history."""
    made = PastRuns()
    made.have_run("train", [300.0] * 30)
    for name in ("m1", "m2"):
        made.add_node(name, amounts(cpu=16, memory=64, gpu=4))
    one = made.add_pod(pod("runs", cpu=16, memory=64, gpu=4))
    for decision in made.cycle().placements:
        made.see(one, node_name=decision.node, phase="Running", start_time=made.now // SECOND)
    made.add_pod(pod("waits", cpu=16, memory=64, gpu=5))
    made.cycle()
    return encode_state(made.state), made.history(), made.now


def asked(objects: list[dict[str, Any]]) -> SubmitAnswer:
    body, history, now = cluster()
    before = history.runs(Basis.CLUSTER, "")
    answer = submit(
        decode_state(body), [Located(f"document {n}", item) for n, item in enumerate(objects)], history, now=now
    )
    assert history.runs(Basis.CLUSTER, "") == before
    return answer


def test_all_kinds_of_owners_are_answered_for() -> None:
    answer = asked(OBJECTS)
    # One of the manifests is a pod that names its node.
    assert [problem.partition(": ")[2] for problem in answer.problems] == [
        "Pod default/a: names its node itself: no scheduler decides on it"
    ]
    assert len(answer.groups) >= 9
    assert asked(OBJECTS) == answer


@settings(max_examples=examples(100), deadline=None)
@given(field=st.sampled_from(FIELDS), junk=st.sampled_from(JUNK))
def test_junk_in_any_field_is_named_or_harmless(field: tuple[int, Path], junk: Any) -> None:
    answer = asked(replaced(field, junk))
    assert all(problem.startswith("document ") for problem in answer.problems)
    for group in answer.groups:
        if group.start is not None and group.start.p90_seconds is not None:
            assert group.start.p50_seconds is not None
            assert 0 <= group.start.p50_seconds <= group.start.p90_seconds
