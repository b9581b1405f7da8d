"""Are the simulated API server and kubelets installed? Production does without them."""

from importlib.util import find_spec

from kaicore.errors import ConfigurationError


def check_tool(package: str, *, purpose: str) -> None:
    """Check that a tool is installed: production does without them.

    Raises:
        ConfigurationError: it is not.
    """
    if find_spec(package) is None:
        raise ConfigurationError(f"kai {purpose}, and {package} is not installed: pip install 'kai-ledger[demo]'")
