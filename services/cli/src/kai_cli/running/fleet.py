"""`kai fleet`: simulated kubelets for any API server, where the simulator is installed. Production does without it."""

import os
import sys
from importlib.util import find_spec
from typing import Annotated

from cyclopts import Parameter
from kaicore.errors import ConfigurationError


def check_tool(package: str, *, purpose: str) -> None:
    """Check that a tool is installed: production does without them. Raises ConfigurationError: it is not."""
    if find_spec(package) is None:
        raise ConfigurationError(f"kai {purpose}, and {package} is not installed: pip install 'kai-ledger[demo]'")


def fleet(*arguments: Annotated[str, Parameter(allow_leading_hyphen=True)]) -> int:
    """Run simulated kubelets that join the API server of a kubeconfig; it takes the flags of `kai-fleet`.

    Args:
        arguments: see `kai-fleet --help`; among them --kubeconfig FILE --profile NAME.
    """
    check_tool("kai_fleet", purpose="simulates kubelets")
    # Another program, not an import: services know nothing of each other.
    os.execv(sys.executable, [sys.executable, "-m", "kai_fleet.main", *arguments])  # noqa: S606
