"""`kai completion`: the script that completes `kai` in a shell."""

import sys
from typing import Literal


def completion(shell: Literal["bash", "zsh", "fish"], /) -> int:
    """Print the script that completes `kai` in a shell.

    For bash: `source <(kai completion bash)` in ~/.bashrc. For zsh: `kai completion zsh > "${fpath[1]}/_kai"`.
    For fish: `kai completion fish > ~/.config/fish/completions/kai.fish`.

    Args:
        shell: bash, zsh or fish.
    """
    # All commands; this one is among them.
    from kai_cli.main import app  # noqa: PLC0415

    sys.stdout.write(app.generate_completion(prog_name="kai", shell=shell))
    return 0
