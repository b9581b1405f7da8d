"""An event loop in which waiting takes no time: when nothing is left to do, its clock jumps to the next timer.

For code that reads no clock but the loop's, and does no input or output.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, TypeVar

T = TypeVar("T")


class _Selector(selectors.SelectSelector):
    """Never blocks; counts the time that it did not."""

    skipped_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise AssertionError("every task waits, and nothing will ever happen")
        # Time passes while one works, too; without that, what rounding leaves of a deadline would never be over.
        self.skipped_s += timeout + 1e-7
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._time = _Selector()
        super().__init__(self._time)

    def time(self) -> float:
        """Seconds that have been waited."""
        return self._time.skipped_s

    def run_in_executor(self, _executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Work for a thread is done at once: the clock would jump while a thread works."""
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


def virtually(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run an asynchronous test in virtual time."""

    @wraps(test)
    def run() -> None:
        run_virtually(test())

    return run
