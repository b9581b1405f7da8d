"""The exporter of a node's placements."""

import sys

# msgspec takes typing_extensions where it finds it, 0.3 MB on every node (decision 0585), and `typing` where it does
# not, which has the same since Python 3.11. It is hidden while msgspec is imported and no longer: others may need it.
if "typing_extensions" not in sys.modules:
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]
    try:
        import msgspec as _  # noqa: F401
    finally:
        del sys.modules["typing_extensions"]
