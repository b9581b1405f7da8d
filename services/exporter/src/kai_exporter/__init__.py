"""The exporter of a node's placements."""

from kaicore.interpreter import without

# msgspec takes typing_extensions where it finds it, 0.3 MB on every node (decision 0500), and `typing` where it does
# not, which has the same since Python 3.11.
with without("typing_extensions"):
    import msgspec as _  # noqa: F401
