"""Ports for processes that tests start, which have to know them beforehand."""

import random
import socket


def free_port() -> int:
    """Return a port that nothing listens on, below those that are given to clients."""
    while True:
        port = random.randrange(10_240, 32_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
