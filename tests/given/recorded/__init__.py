"""Logs as a real run wrote them, whole, from position 1: `engine-<version>/<cluster>.jsonl.xz`, an event a line.

They are `kai demo --once`: a simulated API server, 24 kubelets, every service, Postgres and NATS. Each engine has to
decide every recorded cycle as it was decided then. Where a new ENGINE_VERSION is meant to decide otherwise, its own
logs take the place of the old ones:

    kai demo --once --data-dir /tmp/demo && .venv/bin/python -m tests.given.recorded /tmp/demo
"""

import lzma
from pathlib import Path

from kaicore.rules.events.codec import decode_event, encode_event
from kaicore.rules.events.envelope import Event

DIRECTORY = Path(__file__).parent
#: Logs of engine 12, to ask about: `demo.jsonl.xz` and `demo-blind.jsonl.xz`. Today's engine decides otherwise.
DEMO = DIRECTORY / "demo"


def recorded_logs() -> list[Path]:
    """Return all recorded logs, the oldest engine's first."""
    return sorted(DIRECTORY.glob("engine-*/*.jsonl.xz"))


def read_log(path: Path) -> list[Event]:
    return [decode_event(line) for line in lzma.decompress(path.read_bytes()).splitlines()]


def write_log(path: Path, events: list[Event]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = b"".join(encode_event(event) + b"\n" for event in events)
    path.write_bytes(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))
