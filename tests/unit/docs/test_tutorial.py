"""The tutorial's manifests and commands give what the tutorial shows."""

import re
import shlex
from pathlib import Path

from tests.given.processes.kai_commands import kai

PAGE = (Path(__file__).parents[3] / "docs/tutorial/first-answers.md").read_text()


def test_tutorial_commands_print_what_the_tutorial_shows(tmp_path: Path) -> None:
    (manifest,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    shown = re.findall(r"```console\n\$ kai (simulate [^\n]*)\n(.*?)```", PAGE, re.DOTALL)
    assert len(shown) == 2
    for gpus, (command, output) in zip((5, 4), shown, strict=True):
        (tmp_path / "train.yaml").write_text(manifest.replace("nvidia.com/gpu: 5", f"nvidia.com/gpu: {gpus}"))
        done = kai(*shlex.split(command), cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, output)
