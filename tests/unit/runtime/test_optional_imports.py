"""Libraries that others take along if they are installed: they can be hidden for an import, and imported afterwards."""

import subprocess
import sys


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
