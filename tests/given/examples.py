"""The extent of the tests: few examples, and not all tests, in the gate; more by hand and with KAI_TEST_LONG=1."""

import os

import pytest

#: The gate's time is short, and it tries the same examples each time anyway.
FEW = bool(os.environ.get("CI")) and "KAI_TEST_LONG" not in os.environ
#: Of a test that has found nothing for long, or that `make chaos`, `make storm` and `make prove` say more about.
BEYOND_THE_GATE = pytest.mark.skipif(FEW, reason="the gate is short: without CI, or KAI_TEST_LONG=1")
_SHARE = float(os.environ.get("KAI_TEST_EXAMPLES", "0.04" if FEW else "1"))


def examples(count: int) -> int:
    return max(1, round(count * _SHARE))
