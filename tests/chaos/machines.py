"""Two machines, as network namespaces that are each connected to this one by a cable that can be pulled.

A packet into a pulled cable is gone without a word; connections notice when they have waited long enough. It takes root
and the right to make namespaces.
"""

import os
import shutil
import subprocess
from contextlib import suppress
from typing import Self

#: The first two bytes of the cables' addresses: of a range that is nobody's (RFC 2544).
_RANGE = "198.18"


class Machine:
    """A network namespace.

    Attributes:
        host: address under which it reaches this machine, and nothing else.
    """

    def __init__(self, name: str, number: int) -> None:
        self.name = f"kc{os.getpid()}{name}"
        self._cable = f"kc{os.getpid() % 100_000}{name}"
        self._third, self._fourth = (os.getpid() // 32) % 256, os.getpid() % 32 * 8 + number * 4
        self.host = f"{_RANGE}.{self._third}.{self._fourth + 1}"

    def __enter__(self) -> Self:
        own = f"{_RANGE}.{self._third}.{self._fourth + 2}"
        try:
            _ip("netns", "add", self.name)
            _ip("link", "add", self._cable, "type", "veth", "peer", "name", "eth0", "netns", self.name)
            _ip("addr", "add", f"{self.host}/30", "dev", self._cable)
            _ip("link", "set", self._cable, "up")
            _ip("-n", self.name, "addr", "add", f"{own}/30", "dev", "eth0")
            _ip("-n", self.name, "link", "set", "eth0", "up")
            _ip("-n", self.name, "link", "set", "lo", "up")
        except subprocess.CalledProcessError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(subprocess.CalledProcessError):
            _ip("link", "del", self._cable)
        with suppress(subprocess.CalledProcessError):
            _ip("netns", "del", self.name)

    def command(self, *command: str) -> tuple[str, ...]:
        """A command as it runs on this machine."""
        return ("ip", "netns", "exec", self.name, *command)

    def pull(self) -> None:
        _ip("link", "set", self._cable, "down")

    def plug(self) -> None:
        _ip("link", "set", self._cable, "up")


def why_no_machines() -> str:
    """The obstacle on this machine; empty when there is none."""
    if shutil.which("ip") is None:
        return "there is no program `ip` (iproute2)"
    if os.geteuid() != 0:
        return "making network namespaces takes root"
    try:
        with Machine("t", 0):
            return ""
    except subprocess.CalledProcessError as error:
        return f"network namespaces cannot be made: {error.stderr.strip()}"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
