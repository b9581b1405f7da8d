"""The number of examples of a property test: few in the gate, more by hand and with KAI_TEST_LONG=1."""

import os

#: The gate's time is short, and it tries the same examples each time anyway.
FEW = bool(os.environ.get("CI")) and "KAI_TEST_LONG" not in os.environ
_SHARE = float(os.environ.get("KAI_TEST_EXAMPLES", "0.04" if FEW else "1"))


def examples(count: int) -> int:
    return max(1, round(count * _SHARE))
