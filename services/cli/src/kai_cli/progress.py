"""How far a long command is: one line on standard error, written over, where that is a terminal; else nothing."""

import sys
import time
from typing import Self

#: Seconds until the line is shown at all, and between two times that it is written.
_PATIENCE_S, _EVERY_S = 0.5, 0.1
#: Clears a line.
_CLEAR = "\r\x1b[2K"


class Progress:
    """A line such as `replaying  41 % (28,000 of 68,000)  3 s`, gone when the block ends."""

    def __init__(self, what: str) -> None:
        """Args: what: is being done."""
        self._what = what
        self._shown = False
        self._began = self._written = 0.0

    def __enter__(self) -> Self:
        self._began = self._written = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    def __call__(self, done: int, of: int = 0) -> None:
        """Tell how much is done; of how much, where that is known: when it is all, the line goes."""
        now = time.monotonic()
        if done == of:
            self._clear()
            self._began = self._written = now
            return
        due = _EVERY_S if self._shown else _PATIENCE_S
        if now - self._written < due or not sys.stderr.isatty():
            return
        self._shown, self._written = True, now
        amount = f"{100 * done // of} % ({done:,} of {of:,})" if of else f"{done:,}"
        sys.stderr.write(f"{_CLEAR}{self._what}  {amount}  {now - self._began:.0f} s")
        sys.stderr.flush()

    def _clear(self) -> None:
        if self._shown:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()
        self._shown = False
