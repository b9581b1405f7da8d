"""Programs of other schedulers come from the folder that the user names."""

from pathlib import Path

import pytest

from tests.measured.beside.programs import KAI, program, sources


def test_programs_and_checkouts_of_the_named_folder_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAI_BESIDE_BIN", str(tmp_path))
    for name in ("kai-binder", "kube-apiserver"):
        (tmp_path / name).touch()
        assert program(name) == tmp_path / name
    (tmp_path / KAI.folder).mkdir()
    assert sources(KAI) == tmp_path / KAI.folder


@pytest.mark.parametrize("named", [True, False])
def test_program_that_no_module_of_ours_requires_is_missed_by_its_name(
    named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KAI_BESIDE_BIN", raising=False)
    if named:
        monkeypatch.setenv("KAI_BESIDE_BIN", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="kai-scheduler: not in the folder that KAI_BESIDE_BIN names"):
        program("kai-scheduler")
    with pytest.raises(FileNotFoundError, match=r"kai-scheduler-v0\.12\.0: no such checkout in KAI_BESIDE_BIN"):
        sources(KAI)
