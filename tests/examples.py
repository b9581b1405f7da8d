"""How many examples a property test tries: few in the gate, more by hand, many in `make prove`."""

import os

#: Of what a test names; the gate's time is short, and it tries the same examples each time anyway.
_SHARE = float(os.environ.get("KAI_TEST_EXAMPLES", "0.35" if os.environ.get("CI") else "1"))


def examples(count: int) -> int:
    """Return how many of so many to try."""
    return max(1, round(count * _SHARE))
