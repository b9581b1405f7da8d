"""`make storm`: many storms, how many of their pods kubelets denied, and why placements were not as predicted.

Storms are in virtual time (`tests.given.doubles.virtual_storm`), or with `--live` on real processes: the world of `make
chaos` without a fault.
"""

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event

from tests.chaos.profile import PROFILE
from tests.chaos.rejections import Rejections, rejections_of
from tests.chaos.run import run
from tests.chaos.world import WorldOptions
from tests.given.doubles.virtual_storm import PROFILES, VirtualStorm, blow
from tests.given.recorded import write_log
from tests.given.servers.servers import scratch_directory

#: Seconds that one storm lasts: in virtual time, and at most on real processes.
_VIRTUAL_S, _LIVE_S = 100, 300

#: Seconds between two pods, Jobs or gangs of a live storm, and pods that come of them in a second, rather too many.
_PAUSE_S, _PODS_A_SECOND = (0.05, 0.25), 12


@dataclass
class StormTally:
    """The outcome of storms.

    Attributes:
        name: of the profile.
        admitted: pods that a kubelet admitted.
        denied: a line for each pod that a kubelet denied.
        avoidable: how many of these the log knew enough to place elsewhere; None where that is not asked.
        causes: of placements that were not as predicted.
        wrong: whatever else went wrong.
    """

    name: str
    admitted: int = 0
    denied: list[str] = field(default_factory=list)
    avoidable: int | None = None
    causes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        causes = ", ".join(f"{cause} {count}" for cause, count in self.causes.most_common()) or "none"
        avoidable = "" if self.avoidable is None else f" ({self.avoidable} avoidable)"
        line = f"{self.name:16} {self.admitted:6} admitted, {len(self.denied)} denied{avoidable}"
        line += f"; not as predicted: {causes}"
        return "\n".join([line, *(f"  {one}" for one in self.denied), *(f"  WRONG {one}" for one in self.wrong)])


def virtual(name: str, pods: int, reads_s: tuple[float, float]) -> StormTally:
    """Have storms blow over a profile's kubelets until so many pods were admitted."""
    tally, seed = StormTally(name), 100
    while tally.admitted < pods:
        storm = VirtualStorm(PROFILES[name], seed, reads_s=reads_s)
        blow(storm, _VIRTUAL_S)
        tally.admitted += storm.admitted
        tally.denied += [f"{pod} in seed {seed}: {reason}" for _, pod, reason in storm.rejected]
        misses = storm.cluster.state.misses
        misses.expire(1 << 62)
        tally.causes.update(str(miss.cause) for miss in misses.explained.values())
        seed += 1
    return tally


def live(pods: int, *, seed: int, kept: Path | None) -> StormTally:
    """Have storms blow over real processes until so many pods were admitted.

    Args:
        pods: how many.
        seed: of the first storm's load.
        kept: folder for the storms' logs.
    """
    tally = StormTally("live", avoidable=0)
    while tally.admitted < pods:
        seconds = min(_LIVE_S, 10 + (pods - tally.admitted) / _PODS_A_SECOND)
        with scratch_directory() as root:
            options = WorldOptions(profile=root / "profile.yaml")
            options.profile.write_text(PROFILE)
            outcome = asyncio.run(
                run(
                    root,
                    options,
                    seed=seed,
                    seconds=seconds,
                    steps=[],
                    kinds=[],
                    appenders=0,
                    pause=_PAUSE_S,
                    tell=partial(print, file=sys.stderr, flush=True),
                )
            )
        add(tally, outcome.events, rejections_of(outcome.events), outcome.misses)
        tally.wrong += outcome.wrong
        if kept is not None:
            write_log(kept / f"seed-{seed}.log.gz", outcome.events)
        seed += 1
    return tally


def add(tally: StormTally, events: Sequence[Event], rejections: Rejections, misses: Counter[str]) -> None:
    """Count what the log of a live storm tells."""
    admitted = set[str]()
    for event in events:
        match decode_payload(event):
            case payloads.PodObserved(pod=pod) if pod.phase in ("Running", "Succeeded"):
                admitted.add(pod.uid)
            case payloads.PlacementObserved(uid=uid):
                admitted.add(uid)
            case _:
                pass
    tally.admitted += len(admitted)
    tally.denied += [str(one) for one in rejections.all]
    tally.avoidable = (tally.avoidable or 0) + len(rejections.all) - rejections.unavoidable
    tally.causes += misses


def main() -> None:
    """Print what storms came to, profile by profile."""
    parser = argparse.ArgumentParser(prog="make storm", description=__doc__)
    parser.add_argument("--pods", type=int, default=10_000, help="admitted pods of a profile at least")
    parser.add_argument("--profiles", nargs="+", choices=PROFILES, default=list(PROFILES))
    parser.add_argument("--reads", type=float, nargs=2, default=(0.01, 0.05), help="seconds until an exporter has read")
    parser.add_argument("--live", action="store_true", help="on real processes, with the fleet of make chaos")
    parser.add_argument("--seed", type=int, default=1, help="of the first live storm")
    parser.add_argument("--keep", type=Path, help="folder for the logs of live storms")
    given = parser.parse_args()
    if given.live:
        print(live(given.pods, seed=given.seed, kept=given.keep), flush=True)
        return
    for name in given.profiles:
        print(virtual(name, given.pods, tuple(given.reads)), flush=True)


if __name__ == "__main__":
    main()
