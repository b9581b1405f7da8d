"""The guard of policies at the edge: a budget of time for each in each cycle, and a bound of memory.

It catches accidents, not attacks: a policy is trusted code. An endless loop is ended by an exception that another
thread puts into the one that runs it; a single call into C that does not return is not ended. Memory is bounded by the
process's address space (`RLIMIT_AS`), for the time of each call only.
"""

import ctypes
import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from kaicore.rules.engine.policies.book import PolicyOverran

_Answer = TypeVar("_Answer")

#: Bytes of the address space that is in use, in pages, stand first here.
_STATM = Path("/proc/self/statm")
#: A watch looks so many times within a budget.
_LOOKS = 8


class _TimeIsUp(BaseException):
    """Ends a policy; no `except Exception` of it catches that."""


class TimeAndMemory:
    """Bounds the time and the memory of policies.

    A policy that overran is not run at all for a while: else each cycle would wait for it.
    """

    def __init__(
        self,
        *,
        budget_s: float = 1.0,
        memory_bytes: int = 1 << 30,
        rest_s: float = 600.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        budget_s: for which a policy may run in one cycle, seconds.
        memory_bytes: how much memory a policy may ask for.
        rest_s: for how long one that overran is not run.
        monotonic: seconds that never jump.
        """
        self._budget_s, self._memory_bytes, self._rest_s = budget_s, memory_bytes, rest_s
        self._monotonic = monotonic
        #: By policy, what it has used of this cycle's budget, and until when it is not run.
        self._used_s: dict[str, float] = {}
        self._rests_until_s: dict[str, float] = {}
        self._lock = threading.Lock()
        #: The thread that is to be interrupted, and when; None while no policy runs.
        self._watched: tuple[int, float] | None = None
        self._watch: threading.Thread | None = None

    def begin(self) -> None:
        """Take notice that a cycle begins."""
        self._used_s.clear()

    def run(self, policy: str, call: Callable[[], _Answer]) -> _Answer:
        """Run a part of a policy.

        Raises:
            PolicyOverran: it took longer than its budget of the cycle, or did so lately.
            MemoryError: it asked for more memory than its bound.
        """
        began_s = self._monotonic()
        if began_s < self._rests_until_s.get(policy, 0.0):
            raise PolicyOverran("took too long lately, and is not asked for a while")
        left_s = self._budget_s - self._used_s.get(policy, 0.0)
        limits = self._bound_memory()
        try:
            try:
                self._start(began_s + left_s)
                return call()
            finally:
                self._stop()
        except _TimeIsUp:
            self._stop()
            self._rests_until_s[policy] = self._monotonic() + self._rest_s
            raise PolicyOverran(f"took longer than {self._budget_s:g} s") from None
        except MemoryError:
            self._rests_until_s[policy] = self._monotonic() + self._rest_s
            raise
        finally:
            resource.setrlimit(resource.RLIMIT_AS, limits)
            self._used_s[policy] = self._used_s.get(policy, 0.0) + self._monotonic() - began_s

    def _bound_memory(self) -> tuple[int, int]:
        """Bound the address space; returns the limits to put back."""
        limits = resource.getrlimit(resource.RLIMIT_AS)
        if _STATM.exists():
            used = int(_STATM.read_text().split(maxsplit=1)[0]) * resource.getpagesize()
            bound = used + self._memory_bytes
            if limits[0] == resource.RLIM_INFINITY or bound < limits[0]:
                resource.setrlimit(resource.RLIMIT_AS, (bound, limits[1]))
        return limits

    def _start(self, until_s: float) -> None:
        if self._watch is None:
            self._watch = threading.Thread(target=self._keep_watch, name="policy-watch", daemon=True)
            self._watch.start()
        self._watched = threading.get_ident(), until_s

    def _stop(self) -> None:
        with self._lock:
            watched, self._watched = self._watched, None
            if watched is not None:
                # One that was put in just now must not end what comes afterwards.
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(watched[0]), None)

    def _keep_watch(self) -> None:
        """Interrupt a policy that has used its time, again and again until it ends."""
        while True:
            time.sleep(self._budget_s / _LOOKS)
            with self._lock:
                watched = self._watched
                if watched is not None and self._monotonic() >= watched[1]:
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(watched[0]), ctypes.py_object(_TimeIsUp))
