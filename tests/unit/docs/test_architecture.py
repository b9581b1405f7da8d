"""One picture of the architecture: CONTRIBUTING.md, .importlinter and the folders say the same; no code is dead."""

import configparser
from pathlib import Path

import pytest

from scripts import check_dead_code

ROOT = Path(__file__).parents[3]
LIBRARY = ROOT / "libs/kaicore/src/kaicore"
CONTRACTS = configparser.ConfigParser()
CONTRACTS.read(ROOT / ".importlinter")


def layers(contract: str) -> list[list[str]]:
    """The layers of a contract, the highest first; those that do not know each other stand together."""
    text = CONTRACTS[f"importlinter:contract:{contract}"]["layers"]
    return [[name.strip() for name in line.split("|")] for line in text.strip().split("\n")]


def picture() -> list[str]:
    """The lines of the picture in CONTRIBUTING.md."""
    blocks = (ROOT / "CONTRIBUTING.md").read_text().split("```")
    (drawn,) = (block for block in blocks if "analysis" in block and "model <- " in block)
    return [line for line in drawn.split("\n") if line.strip()]


def packages(folder: Path) -> set[str]:
    return {path.parent.name for path in folder.glob("*/__init__.py")}


def test_both_pictures_are_the_same() -> None:
    comment = [
        line.removeprefix("# ") for line in (ROOT / ".importlinter").read_text().split("\n") if line[:3] == "#  "
    ]
    assert comment == picture()


def test_picture_shows_the_layers_that_the_contracts_hold() -> None:
    names = [
        [name for name in line.partition("   model")[0].split() if name in packages(LIBRARY)] for line in picture()
    ]
    drawn = [sorted(line) for line in names if line]
    held = [sorted(packages(LIBRARY) & set(layer)) for layer in layers("towers")]
    assert drawn == [layer for layer in held if layer]
    chain = picture()[-1].partition("rules")[2]
    inside = [[name.strip() for name in part.split(",")] for part in chain.split("<-")]
    assert [sorted(part) for part in reversed(inside)] == [sorted(layer) for layer in layers("rules")]


def test_every_package_of_the_library_is_in_a_layer_and_in_the_list_of_folders() -> None:
    modules = {path.stem for path in LIBRARY.glob("*.py")}
    assert {name for layer in layers("towers") for name in layer} - modules == packages(LIBRARY)
    assert {name for layer in layers("rules") for name in layer} == packages(LIBRARY / "rules")
    ledger = LIBRARY / "ledger"
    parts = packages(ledger) | {path.stem for path in ledger.glob("*.py") if path.stem != "__init__"}
    assert {name for layer in layers("ledger") for name in layer} == parts
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert all(f"\n  {name}/" in text for name in packages(LIBRARY))
    assert all(f"`{name}`" in text for name in packages(LIBRARY / "rules" / "engine"))


def test_dead_code_is_found_and_a_use_in_a_template_or_by_a_decorator_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "libs").mkdir()
    lines = (
        "def called(): pass",
        "@app.get('/')",
        "def routed(): called()",
        "class Shown:",
        "    def dead(self): pass",
    )
    (tmp_path / "libs/a.py").write_text("\n\n".join(lines).replace("/')\n", "/')"))
    (tmp_path / "libs/page.html").write_text("{{ Shown }}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(check_dead_code, "CALLED_BY", {})
    assert check_dead_code.main() == 1
    assert capsys.readouterr().err == "libs/a.py:8: dead: dead code\n"
