"""The version of this installation, which all its programs have in common."""

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed


def version() -> str:
    """Return it; `unknown` for sources that were not installed."""
    try:
        return installed("kai-ledger")
    except PackageNotFoundError:
        return "unknown"
