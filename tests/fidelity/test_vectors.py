"""Smaller sets of kubelet decisions: our own, and the recorded ones; `make fidelity` runs all of them."""

import gzip
import json
import os
import subprocess
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from kaicore.rules.engine.config import Evaluator

from tests.fidelity.__main__ import OURS, THRESHOLDS, main, shortfalls
from tests.fidelity.format import VectorError
from tests.fidelity.history import Knowledge
from tests.fidelity.judge import Judge
from tests.fidelity.vectors import read_vectors
from tests.given.shared_data import require_shared

#: Of the recorded scenarios, each so manieth is judged by other rules too; all of them with KAI_TEST_LONG=1.
SOME = 1 if "KAI_TEST_LONG" in os.environ else 6
COUNTING = Knowledge(evaluator=Evaluator.COUNTING, reconstruct=False)
MINI = "data/kubelet/mini.jsonl.gz"


def judged(path: Path, knowledge: Knowledge | None = None, *, every: int = 1) -> Judge:
    judge = Judge(knowledge or Knowledge())
    for scenario in islice(read_vectors(path), None, None, every):
        judge.run(scenario)
    return judge


def share(agreed: int, count: int) -> float:
    return agreed * 100 / count


def test_agreement_with_the_worked_examples() -> None:
    judge = judged(OURS)
    assert judge.disagreements == []
    assert shortfalls(judge, THRESHOLDS) == []
    assert judged(OURS, COUNTING).total().wrong_admits, "they are those that the counting rule gets wrong"


@pytest.mark.parametrize(
    ("file", "every"), [("worked_examples.jsonl.gz", 1), ("mini.jsonl.gz", min(SOME, 2))], ids=["seed", "mini"]
)
def test_agreement_with_the_real_kubelet(file: str, every: int) -> None:
    judge = judged(require_shared(f"data/kubelet/{file}"), every=every)
    score = judge.total()
    assert shortfalls(judge, THRESHOLDS) == [], "\n".join(judge.disagreements)
    assert share(score.certain_agreed, score.certain) >= 99.9


def test_the_seeds_rule_is_worse() -> None:
    counting = judged(require_shared(MINI), COUNTING, every=SOME).total()
    assert 90 < share(counting.admits_agreed, counting.admits) < 97


def test_an_unknown_history_is_admitted_to_and_costs_little() -> None:
    judge = judged(require_shared(MINI), Knowledge(since=50), every=SOME)
    late = judge.total()
    assert share(late.admits_agreed, late.admits) >= 99.5
    assert late.incomplete == sum(count for _, count in judge.incomplete.values())
    assert all(since > 0 for since, _ in judge.incomplete.values())


def test_without_an_exporter_what_is_wrong_follows_splits_that_the_kubelet_draws() -> None:
    """Devices of several zones are taken in the order of a Go map: who knows only those splits is right again."""
    alone = judged(require_shared(MINI), Knowledge(observed=False, published=False), every=SOME).total()
    assert share(alone.admits_agreed, alone.admits) >= 99.9
    knowing = Knowledge(observed=False, published=False, settled=True)
    settled = judged(require_shared(MINI), knowing, every=SOME).total()
    assert share(settled.admits_agreed, settled.admits) >= 99.95


class Output:
    """`make fidelity` over files of a test."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys, self._patch = capsys, monkeypatch

    def of(self, *arguments: str) -> tuple[int, str]:
        """Exit code, and all that was said."""
        self._patch.setattr("sys.argv", ["fidelity", "--only", "exact", *arguments])
        try:
            code = main()
        except SystemExit as error:
            code = int(error.code or 0)
        output = self._capsys.readouterr()
        return code, output.out + output.err


@pytest.fixture
def output(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Output:
    return Output(capsys, monkeypatch)


def worked(**changes: Any) -> list[dict[str, Any]]:
    """Our vectors, with something changed of what the last pod of one of them got."""
    scenarios = [json.loads(line) for line in OURS.read_text().splitlines()]
    group = next(one for one in scenarios if one["id"].startswith("a-group-of-zones"))
    group["events"][-1]["alloc"][0].update(changes)
    return scenarios


@pytest.mark.parametrize(
    ("changes", "figure"),
    [({"affinity": [1]}, "mask"), ({"memory": [{"type": "memory", "size": 1, "numa": [0]}]}, "memory")],
)
def test_every_figure_of_every_file_counts(
    tmp_path: Path, output: Output, changes: dict[str, Any], figure: str
) -> None:
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text("\n".join(json.dumps(one) for one in worked(**changes)))
    code, printed = output.of(str(OURS), str(wrong))
    assert code == 1
    assert f"below: {wrong}: {figure}: " in printed
    assert f"below: {OURS}" not in printed
    assert output.of(str(OURS), str(wrong), "--threshold", f"{figure}=0")[0] == 0


def test_an_incomplete_history_is_said_of_each_node(output: Output) -> None:
    _, printed = output.of(str(OURS), "--only", "installed-late-no-placements")
    assert "pod-scope-asks-once: history incomplete" not in printed
    assert "devices-of-every-class-of-pods: history incomplete since position 3 (2 admissions)" in printed


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", ": no admission in it that could be judged"),
        (b"\n{", ", line 2: Input data was truncated"),
        (b'{"id": "a", "tags": [], "events": []}', ", line 1: Object missing required field `node`"),
        (gzip.compress(b"{}", mtime=0)[:-9], ": Compressed file ended before the end-of-stream marker was reached"),
    ],
)
def test_what_is_no_vector_file_is_said_with_line_and_field(
    tmp_path: Path, output: Output, content: bytes, problem: str
) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_bytes(content)
    assert output.of(str(OURS), str(file)) == (2, f"fidelity: {file}{problem}\n")


def test_fields_that_contradict_each_other_are_named(tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    (first, *_) = worked()
    first["events"][1]["reason"] = first["events"][1].pop("alloc")[0]["name"]
    file.write_text(json.dumps(first))
    with pytest.raises(VectorError, match=r"line 1: missing required field `alloc` - at `\$.events"):
        list(read_vectors(file))


def test_without_recorded_decisions_it_says_how_few_it_judges(tmp_path: Path) -> None:
    done = subprocess.run(
        ["make", "-s", "-o", ".venv/.installed", "fidelity", "ARGS=--only exact --quiet"],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "KAI_SHARED": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    admits = judged(OURS).total().admits
    first, *table = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert first == f"only {admits} verdicts of our own: no recorded ones in {tmp_path}/data/kubelet (see KAI_SHARED)"
    assert [line.split()[1] for line in table if line.split()[:1] == ["all"]] == [str(admits)]
