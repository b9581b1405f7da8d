"""Libraries that others take along if they are installed: they are not imported, and can be afterwards."""

import subprocess
import sys

#: Each takes 0.05 to 0.2 s of a start.
HEAVY = ("aiohttp", "alembic", "jwt", "kubernetes_asyncio", "rich")
#: Processes that use none of them at their start.
LEAN = ("kai_scheduler", "kai_relay", "kai_projector", "kai_hub", "kai_webhook", "kai_api")


def test_services_start_without_libraries_that_they_do_not_use_there() -> None:
    mains = ", ".join(f"{name}.main" for name in LEAN)
    code = f"import {mains}, sys; print([one for one in {HEAVY!r} if one in sys.modules])"
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert asked.stdout.strip() == "[]"


def test_package_that_was_hidden_can_be_imported_afterwards_and_one_that_was_there_stays() -> None:
    code = """
import colorsys, sys
from kaicore.interpreter import without
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
