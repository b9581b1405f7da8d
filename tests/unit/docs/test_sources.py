"""Sources can be opened: what a rule cites is a file or document of an upstream project, by path and version."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]
#: What stood on the desks of this code's authors: notes and copies that no reader has.
_UNOPENABLE = re.compile(
    r"\bfacts/|\bseeds/|\b[Ss]eed `|\bseed's\b"
    r"|\b[Tt]he seed(?:'s)? (?:rule|design|example|counting|format|annotations?)"
)


def test_no_file_cites_what_a_reader_cannot_open() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    citations = []
    for name in listed:
        path = ROOT / name
        if path == Path(__file__) or path.suffix not in {".py", ".md", ".yaml", ".toml", ".sql"} or not path.is_file():
            continue
        citations += [f"{name}: {match[0]}" for match in _UNOPENABLE.finditer(path.read_text())]
    assert citations == []
