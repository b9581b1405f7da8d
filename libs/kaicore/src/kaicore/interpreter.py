"""The interpreter that runs us: libraries to do without, the version installed, waits for a descriptor and for tasks.

Our dependencies import some optional libraries if they are installed, and this product does not use them there. The
version is that of the installation, which all its programs have in common. The descriptor is such as of a socket or of
a process, and nothing but its news ends the wait.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import get_ident
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

#: Seconds after which a task that was cancelled and goes on is cancelled again.
_CANCEL_AGAIN_S = 0.1


@contextmanager
def without(*names: str) -> Iterator[None]:
    """Have what this thread imports meanwhile find none of these packages, unless something has imported it before.

    Args:
        names: of packages, such as `rich`.
    """
    hidden = _Hidden(names)
    sys.meta_path.insert(0, hidden)
    try:
        yield
    finally:
        sys.meta_path.remove(hidden)


class _Hidden:
    """Is asked first where a module is, and says of some that they are not installed."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._thread = get_ident()

    def find_spec(self, name: str, *_: object) -> None:
        if name in self._names and get_ident() == self._thread:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


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


async def end(task: "asyncio.Future[Any]") -> None:
    """Cancel a task until it has ended: of Python 3.11, `asyncio.wait_for` may swallow a cancellation."""
    # Short commands do without it.
    import asyncio  # noqa: PLC0415

    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=_CANCEL_AGAIN_S)
