"""The interpreter that runs us: libraries to do without, the version installed, waits for a descriptor and for tasks.

Our dependencies import some optional libraries if they are installed, and this product does not use them there. The
version is that of the installation, which all its programs have in common. The descriptor is such as of a socket or of
a process, and nothing but its news ends the wait.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

#: Seconds after which a task that was cancelled and goes on is cancelled again.
_CANCEL_AGAIN_S = 0.1


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


def version() -> str:
    """Return the version of this installation; `unknown` for sources that were not installed."""
    # It takes a mail parser, which nothing else of a short command needs.
    from importlib.metadata import PackageNotFoundError  # noqa: PLC0415
    from importlib.metadata import version as installed  # noqa: PLC0415

    try:
        return installed("kai-ledger")
    except PackageNotFoundError:
        return "unknown"


async def readable(descriptor: int) -> None:
    """Wait until a descriptor has something to read, or is at its end; nothing else may wait for it meanwhile."""
    # Short commands do without it.
    import asyncio  # noqa: PLC0415

    loop, is_readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, is_readable.set)
    try:
        await is_readable.wait()
    finally:
        loop.remove_reader(descriptor)


async def end(task: "asyncio.Task[Any]") -> None:
    """Cancel a task until it has ended: of Python 3.11, `asyncio.wait_for` may swallow a cancellation."""
    # Short commands do without it.
    import asyncio  # noqa: PLC0415

    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=_CANCEL_AGAIN_S)
