"""Optional libraries that our dependencies import if they are installed, and that this product does not use there."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without(*names: str) -> Iterator[None]:
    """Have libraries that are imported meanwhile find none of these packages, unless something has imported it before.

    A package with the entry None in `sys.modules` counts as not installed (Python's documentation of `import`).

    Args:
        names: of packages, such as `rich`.
    """
    absent = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]
