"""The smaller set of recorded kubelet decisions; `make fidelity` runs all of them."""

import pytest

from tests.fidelity.judge import Judge
from tests.fidelity.vectors import read_vectors
from tests.shared_data import require_shared


@pytest.mark.parametrize(
    ("file", "least"), [("worked_examples.jsonl.gz", 100.0), ("mini.jsonl.gz", 99.7)], ids=["seed", "mini"]
)
def test_agreement_with_the_real_kubelet(file: str, least: float) -> None:
    judge = Judge()
    for scenario in read_vectors(require_shared(f"data/kubelet/{file}")):
        judge.run(scenario)
    admits = sum(score.admits for score in judge.scores.values())
    agreed = sum(score.agreed for score in judge.scores.values())
    assert admits
    assert agreed * 100 / admits >= least, "\n".join(judge.disagreements)
