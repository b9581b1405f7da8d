"""The smaller set of recorded kubelet decisions; `make fidelity` runs all of them."""

import pytest
from kaicore.engine.config import Evaluator

from tests.fidelity.history import Knowledge
from tests.fidelity.judge import Judge
from tests.fidelity.vectors import read_vectors
from tests.shared_data import require_shared

COUNTING = Knowledge(evaluator=Evaluator.COUNTING, reconstruct=False)


def judged(file: str, knowledge: Knowledge | None = None) -> Judge:
    judge = Judge(knowledge or Knowledge())
    for scenario in read_vectors(require_shared(f"data/kubelet/{file}")):
        judge.run(scenario)
    return judge


def share(agreed: int, count: int) -> float:
    return agreed * 100 / count


@pytest.mark.parametrize("file", ["worked_examples.jsonl.gz", "mini.jsonl.gz"], ids=["seed", "mini"])
def test_agreement_with_the_real_kubelet(file: str) -> None:
    judge = judged(file)
    score, wrong = judge.total(), "\n".join(judge.disagreements)
    assert share(score.admits_agreed, score.admits) >= 99.95, wrong
    assert share(score.reasons_agreed, score.reasons) >= 99.5, wrong
    assert share(score.masks_agreed, score.masks) >= 99.9, wrong
    assert share(score.memory_agreed, score.memory) >= 99.9, wrong
    assert share(score.certain_agreed, score.certain) >= 99.9, wrong
    assert not score.cpu_splits or share(score.cpu_splits_agreed, score.cpu_splits) >= 86, wrong


def test_the_seeds_rule_is_worse() -> None:
    counting = judged("mini.jsonl.gz", COUNTING).total()
    assert 90 < share(counting.admits_agreed, counting.admits) < 97


def test_an_unknown_history_is_admitted_to_and_costs_little() -> None:
    late = judged("mini.jsonl.gz", Knowledge(since=50)).total()
    assert share(late.admits_agreed, late.admits) >= 99.5
    assert late.incomplete
    alone = judged("mini.jsonl.gz", Knowledge(observed=False, published=False)).total()
    assert share(alone.admits_agreed, alone.admits) >= 99.5
