"""The digested stories, and their digests at the last renewal."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

import msgspec

from tests.measured.digest import device_stories, stories, zone_stories
from tests.measured.digest.benchmarks import SCENES
from tests.measured.digest.engine import ENGINE_VERSION, Recorder

#: How many stories there are of a family, and how many of them the gate tells.
_RANDOM: dict[str, tuple[Callable[[Recorder, Random], None], int, int]] = {
    "gangs": (stories.gangs, 60, 6),
    "moving": (stories.moving, 40, 4),
    "fair": (stories.fair, 20, 4),
    "zones": (zone_stories.zones, 60, 6),
    "volumes": (zone_stories.volumes, 60, 6),
    "shared": (zone_stories.shared_volumes, 220, 8),
    "devices": (device_stories.devices, 40, 4),
}
_BENCHMARKS = "benchmarks"
FAMILIES = {**{name: count for name, (_, count, _) in _RANDOM.items()}, _BENCHMARKS: len(SCENES)}
IN_THE_GATE = {**{name: count for name, (_, _, count) in _RANDOM.items()}, _BENCHMARKS: len(SCENES)}

_EXPECTED = Path(__file__).with_name("expected.json")
#: Hexadecimal digits of a story's digest that are kept.
_DIGITS = 16


class Expected(msgspec.Struct, frozen=True, rename="camel"):
    """The digests of all stories, by family, as a version of the engine decides them."""

    engine_version: str
    stories: dict[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class StoryRun:
    """A finished story: its digest, and the number of decisions."""

    digest: str
    cycles: int
    decisions: int


def run_story(family: str, number: int, write: Callable[[bytes], None] | None = None) -> StoryRun:
    """Tell a story; `write` gets what is decided, a line of JSON each."""
    recorder = Recorder(write)
    if family == _BENCHMARKS:
        SCENES[number](recorder)
    else:
        _RANDOM[family][0](recorder, Random(f"{family}/{number}"))
    return StoryRun(recorder.digest()[:_DIGITS], recorder.cycles, recorder.decisions)


@cache
def expected() -> Expected:
    """Return what was decided when the digests were last renewed."""
    return msgspec.json.decode(_EXPECTED.read_bytes(), type=Expected)


def renew(digests: dict[str, tuple[str, ...]]) -> None:
    """Keep the digests of all stories as what is expected."""
    expected = msgspec.json.encode(Expected(ENGINE_VERSION, digests))
    _EXPECTED.write_bytes(msgspec.json.format(expected, indent=1) + b"\n")
