"""Libraries that others take along if they are installed: they can be hidden for an import, and imported afterwards."""

import subprocess
import sys


def test_package_that_was_hidden_can_be_imported_afterwards_and_one_that_was_there_stays() -> None:
    code = """
import colorsys, sys, threading
from kaicore.interpreter import without
before = list(sys.meta_path)
with without("colorsys", "fractions", "wave"):
    import colorsys
    other = threading.Thread(target=__import__, args=("wave",))
    other.start()
    other.join()
    import wave
    try:
        import fractions
    except ImportError:
        print("hidden", None in sys.modules.values())
import fractions
print(fractions.Fraction(1, 2), sys.meta_path == before)
"""
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert asked.stdout.split() == ["hidden", "False", "1/2", "True"]
