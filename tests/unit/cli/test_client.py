"""`kai_ledger.client`: answers of the commands as Python objects, also while an event loop runs."""

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kai_ledger.client import Ledger
from kaicore.errors import ConfigurationError, KaiError

from tests.given.processes.called_kai import caller
from tests.measured.assistants import log_file


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return log_file(tmp_path_factory.mktemp("client"), "demo")


@pytest.fixture(scope="module")
def ledger(file: Path) -> Iterator[Ledger]:
    with Ledger(file) as opened:
        yield opened


@pytest.mark.parametrize("kind", ["pods", "groups", "nodes", "queues"])
def test_rows_and_text_are_those_of_kai_get(
    ledger: Ledger, file: Path, kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, flags = caller(monkeypatch, capsys), (f"--file={file}", "--at=900")
    answer = getattr(ledger, kind)(at="900")
    code, output = run("get", kind, "--output=json", *flags)
    assert (code, answer.to_dicts()) == (0, json.loads(output)["items"])
    code, output = run("get", kind, *flags)
    assert (code, output.endswith(f"{answer}\n")) == (0, True)
    assert [*answer] == answer.to_dicts()
    assert len(answer) == answer.data.total


async def test_notebook_of_the_examples_runs_while_an_event_loop_does_as_in_a_kernel(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = json.loads((Path(__file__).parents[3] / "examples" / "ledger.ipynb").read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    monkeypatch.setenv("KAI_LOG", str(file))
    assert asyncio.get_running_loop().is_running()
    names: dict[str, Any] = {}
    for cell in code:
        exec("".join(cell["source"]), names)
    (pending,) = names["waiting"].to_dicts()
    assert (names["why"].data.name, "never-fits" in capsys.readouterr().out) == (pending["name"], True)
    assert (names["replay"].data.cycles, names["replay"].data.differences) == (32, [])
    held = sum(row["gpu_held_hours"] for row in names["report"])
    assert held == pytest.approx(sum(row.gpu.held for row in names["report"].data.owners))
    assert held > 0
    assert [one.name for one in names["compared"].data.alternatives] == ["numa=false"]
    assert "numa=false" in str(names["compared"])


def test_questions_that_make_no_sense_are_refused(ledger: Ledger, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for ask, problem in (
        (lambda: ledger.why("default/nobody"), "nobody"),
        (lambda: ledger.pods(queue="nobody"), "nobody"),
        (lambda: Ledger(file, cluster="nobody"), "no cluster 'nobody'"),
        (lambda: Ledger(file.with_name("none")), "none: cannot be read: No such file"),
        (lambda: Ledger("http://127.0.0.1:1"), "127.0.0.1:1"),
        (lambda: ledger.queues(node="n1"), "queues cannot be filtered by node"),
    ):
        with pytest.raises(KaiError, match=problem):
            ask()
    for name in ("polars", "pandas"):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(ConfigurationError, match=f"{name} is not installed: pip install {name}"):
            getattr(ledger.nodes(), f"to_{name}")()
    with Ledger(file) as closed:
        pass
    closed.close()
    with pytest.raises(ConfigurationError, match="closed"):
        closed.nodes()
