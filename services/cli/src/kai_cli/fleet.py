"""`kai fleet`: simulated kubelets for any API server."""

import os
import sys
from typing import Annotated

from cyclopts import Parameter

from kai_cli.installed_tools import check_tool


def fleet(*arguments: Annotated[str, Parameter(allow_leading_hyphen=True)]) -> int:
    """Run simulated kubelets that join the API server of a kubeconfig; it takes the flags of `kai-fleet`.

    Args:
        arguments: see `kai-fleet --help`; among them --kubeconfig FILE --profile NAME.
    """
    check_tool("kai_fleet", purpose="simulates kubelets")
    # Another program, not an import: services know nothing of each other.
    os.execv(sys.executable, [sys.executable, "-m", "kai_fleet.main", *arguments])  # noqa: S606
