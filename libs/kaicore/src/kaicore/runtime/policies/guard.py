"""The guard of policies at the edge: a budget of time for each in each cycle, and a bound of memory.

It catches accidents, not attacks: a policy is trusted code. An endless loop is ended by an exception that another
thread puts into the one that runs it; a single call into C that does not return is not ended. The budget is CPU time of
the thread that runs it, so a busy machine leaves no policy out; a policy that waits is ended after ten times as long.
Memory is bounded by the process's address space (`RLIMIT_AS`), for the time of each call only.
"""

import ctypes
import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from kaicore.rules.engine.policies.book import BUDGET_S, PolicyOverran

_Answer = TypeVar("_Answer")

#: Bytes of the address space that is in use, in pages, stand first here.
_STATM = Path("/proc/self/statm")
#: A look at the memory in use takes longer than many a call.
_MEMORY_EVERY_S = 0.02
#: A watch looks so many times within a budget.
_LOOKS = 8
#: So many budgets may pass on the wall while a policy runs.
_WALL_BUDGETS = 10


class _TimeIsUp(BaseException):
    """Ends a policy; no `except Exception` of it catches that."""


class _Watched(NamedTuple):
    """A call of a policy.

    Attributes:
        clock: of the CPU time of that thread.
        until_cpu_s: when it is to have ended, by that clock.
        until_s: when it is to have ended, by the clock that never jumps.
    """

    thread: int
    clock: int
    until_cpu_s: float
    until_s: float


class TimeAndMemory:
    """Bounds the time and the memory of policies.

    A policy that overran is not run at all for a while: else each cycle would wait for it.
    """

    def __init__(
        self,
        *,
        budget_s: float = BUDGET_S,
        memory_bytes: int = 1 << 30,
        rest_s: float = 600.0,
    ) -> None:
        """Args:
        budget_s: for which a policy may run in one cycle, seconds of CPU.
        memory_bytes: how much memory a policy may ask for.
        rest_s: for how long one that overran is not run.
        """
        self._budget_s, self._memory_bytes, self._rest_s = budget_s, memory_bytes, rest_s
        #: By policy, what it has used of this cycle's budget, and until when it is not run.
        self._used_s: dict[str, float] = {}
        self._rests_until_s: dict[str, float] = {}
        #: Policies that rest for the memory that they asked for.
        self._hoarders: set[str] = set()
        self._lock = threading.Lock()
        #: One call at a time: a process has one bound of memory, and the API answers in several threads.
        self._turn = threading.Lock()
        #: The address space in use, bytes, and when it is looked at next.
        self._in_use, self._look_at_memory_s = 0, 0.0
        #: The call that is to be interrupted; None while no policy runs.
        self._watched: _Watched | None = None
        #: Whether an exception was put into the thread that runs it.
        self._put_in = False
        self._watch: threading.Thread | None = None

    def begin(self) -> None:
        """Take notice that a cycle begins."""
        self._used_s.clear()

    def run(self, policy: str, call: Callable[[], _Answer]) -> _Answer:
        """Run a part of a policy.

        Raises:
            PolicyOverran: it took longer than its budget of the cycle, or did so lately.
            MemoryError: it asked for more memory than its bound, or did so lately.
        """
        with self._turn:
            return self._run(policy, call)

    def _run(self, policy: str, call: Callable[[], _Answer]) -> _Answer:
        began_s = time.monotonic()
        if began_s < self._rests_until_s.get(policy, 0.0):
            if policy in self._hoarders:
                raise MemoryError("asked for too much memory lately, and is not asked for a while")
            raise PolicyOverran("took too long lately, and is not asked for a while")
        self._hoarders.discard(policy)
        left_s = self._budget_s - self._used_s.get(policy, 0.0)
        clock = time.pthread_getcpuclockid(threading.get_ident())
        began_cpu_s = time.clock_gettime(clock)
        limits = self._bound_memory(began_s)
        try:
            try:
                until_s = began_s + self._budget_s * _WALL_BUDGETS
                self._start(_Watched(threading.get_ident(), clock, began_cpu_s + left_s, until_s))
                return call()
            finally:
                self._stop()
        except _TimeIsUp:
            self._stop()
            self._rests_until_s[policy] = time.monotonic() + self._rest_s
            raise PolicyOverran(f"took longer than {self._budget_s:g} s") from None
        except MemoryError:
            self._hoarders.add(policy)
            self._rests_until_s[policy] = time.monotonic() + self._rest_s
            raise
        finally:
            resource.setrlimit(resource.RLIMIT_AS, limits)
            self._used_s[policy] = self._used_s.get(policy, 0.0) + time.clock_gettime(clock) - began_cpu_s

    def _bound_memory(self, now_s: float) -> tuple[int, int]:
        """Bound the address space; returns the limits to put back."""
        limits = resource.getrlimit(resource.RLIMIT_AS)
        if now_s >= self._look_at_memory_s:
            self._look_at_memory_s = now_s + _MEMORY_EVERY_S
            self._in_use = (
                int(_STATM.read_text().split(maxsplit=1)[0]) * resource.getpagesize() if _STATM.exists() else 0
            )
        if self._in_use:
            bound = self._in_use + self._memory_bytes
            if limits[0] == resource.RLIM_INFINITY or bound < limits[0]:
                resource.setrlimit(resource.RLIMIT_AS, (bound, limits[1]))
        return limits

    def _start(self, watched: _Watched) -> None:
        if self._watch is None:
            self._watch = threading.Thread(target=self._keep_watch, name="policy-watch", daemon=True)
            self._watch.start()
        self._watched = watched

    def _stop(self) -> None:
        with self._lock:
            watched, self._watched = self._watched, None
            put_in, self._put_in = self._put_in, False
            if watched is None or not put_in:
                # To take back nothing would have Python 3.11 look for exceptions at each call ever after.
                return
            # One that was put in just now must not end what comes afterwards.
            try:
                _put_in(watched.thread)
                while True:
                    pass
            except _TimeIsUp:
                return

    def _keep_watch(self) -> None:
        """Interrupt a policy that has used its time, again and again until it ends."""
        while True:
            time.sleep(self._budget_s / _LOOKS)
            with self._lock:
                watched = self._watched
                if watched is not None and self._has_overrun(watched):
                    self._put_in = True
                    _put_in(watched.thread)

    def _has_overrun(self, watched: _Watched) -> bool:
        return time.clock_gettime(watched.clock) >= watched.until_cpu_s or time.monotonic() >= watched.until_s


def _put_in(thread: int) -> None:
    """Have a thread raise `_TimeIsUp` at its next step, in place of one that it did not come to yet."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(_TimeIsUp))
