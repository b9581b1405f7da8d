"""Libraries that others take along if they are installed: they are not imported, and can be afterwards."""

import subprocess
import sys

import pytest

#: What each process of the product is better without; each takes 0.05 to 0.2 s of a start.
LEAN = [
    ("kai_scheduler.main", ("aiohttp", "rich", "jwt", "sqlalchemy", "fastapi")),
    ("kai_api.main", ("aiohttp", "rich", "jwt")),
]


@pytest.mark.parametrize(("module", "left_out"), LEAN)
def test_service_starts_without_libraries_that_it_does_not_use(module: str, left_out: tuple[str, ...]) -> None:
    code = f"import {module}, sys; print([one for one in {left_out!r} if one in sys.modules])"
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert asked.stdout.strip() == "[]"


def test_package_that_was_hidden_can_be_imported_afterwards_and_one_that_was_there_stays() -> None:
    code = """
import colorsys, sys
from kaicore.optional_imports import without
with without("colorsys", "fractions"):
    import colorsys
    try:
        import fractions
    except ImportError:
        print("hidden")
import fractions
print(fractions.Fraction(1, 2))
"""
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert asked.stdout.split() == ["hidden", "1/2"]
