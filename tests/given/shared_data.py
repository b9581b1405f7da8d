"""The folder of the real input that tests use and the project does not contain."""

import os
from pathlib import Path

import pytest

_SHARED = Path(os.environ.get("KAI_SHARED") or Path(__file__).resolve().parents[3] / "shared")


def shared_path(relative: str) -> Path:
    """Return a path below the folder with shared data, whether it exists or not."""
    return _SHARED / relative


def require_shared(relative: str) -> Path:
    """Return a path below the folder with shared data; skip the test that asks where it is absent."""
    path = shared_path(relative)
    if not path.exists():
        pytest.skip(f"{path} is absent: this test needs the shared data folder beside the checkout (or KAI_SHARED)")
    return path
