"""Becomes a server: the last code that runs in the child before the server's own program.

`subprocess` could do most of this, but the parent-death signal must be asked for after the change of user, which clears
it, and code between fork and exec of a process with threads can deadlock. So this is a program of its own, which knows
nothing of kaicore and starts in some milliseconds (`python -I -S`).

Arguments: parent's pid, signal to get when it dies, uid, gid (-1: keep), descriptor of the lock file, timer slack in
nanoseconds (0: as it is), then the command.
"""

import ctypes
import os
import sys

#: `prctl(2)`: the signal to get when the thread that started this process ends.
_PR_SET_PDEATHSIG = 1
#: `prctl(2)`: how much later than asked for a wait may end.
_PR_SET_TIMERSLACK = 29


def main(arguments: list[str]) -> None:
    """Note our parent's pid in the lock file, change user, ask for the parent-death signal, become the command."""
    parent, death_signal, uid, gid, lock, slack_ns = (int(argument) for argument in arguments[:6])
    command = arguments[6:]
    # A Ctrl-C on the terminal is for the parent, which then ends its servers in order.
    os.setsid()
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()} {parent}".encode(), 0)
    if gid >= 0:
        os.setgroups([])
        os.setgid(gid)
    if uid >= 0:
        os.setuid(uid)
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
        libc.prctl(_PR_SET_TIMERSLACK, slack_ns, 0, 0, 0)
        if os.getppid() != parent:
            sys.exit("the parent has died already")
    os.chdir("/")
    os.execv(command[0], command)  # noqa: S606  # no shell is the point


if __name__ == "__main__":
    main(sys.argv[1:])
