"""A storm: pods, Jobs and gangs come and go on kubelets that are ahead of the API, and every process dies once.

Five seconds of it in the gate (`KAI_TEST_STORM_S`, `KAI_TEST_STORM_SEED`); `make chaos` has all kinds of faults.
The log is kept as the file `KAI_TEST_STORM_LOG`, where that is set, for `tests.given.recorded.read_log`.
"""

import asyncio
import os
import random
from collections import Counter
from pathlib import Path

import pytest
from kaicore.rules.events.codec import decode_payload

from tests.chaos.faults import KINDS, PROCESSES, schedule
from tests.chaos.profile import PROFILE
from tests.chaos.run import PATIENCE_S, run
from tests.chaos.strikes import Step
from tests.chaos.world import SERVERS, WorldOptions
from tests.given.examples import BEYOND_THE_GATE
from tests.given.recorded import write_log
from tests.given.servers.servers import scratch_directory

SECONDS = float(os.environ.get("KAI_TEST_STORM_S", "5"))
SEED = int(os.environ.get("KAI_TEST_STORM_SEED", "1"))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * SECONDS + 3 * PATIENCE_S)]

#: Kinds of faults that are over at once.
BRIEF = {
    *("kill", "session-end", "cut", "api-lost-answer", "api-half-answer", "watch-drop", "watch-half"),
    *("kubelet-restart", "topologies-lost", "kubelet-lag"),
}


def steps_of(seed: int, seconds: float) -> list[Step]:
    """The brief kinds, and each process and server once, evenly."""
    names = [*PROCESSES, *SERVERS]
    random.Random(seed).shuffle(names)
    deaths = [Step((number + 0.5) * seconds / len(names), "kill", name) for number, name in enumerate(names)]
    drawn = schedule(seed, seconds, tuple(kind for kind in KINDS if kind.name in BRIEF), scale=0.5)
    return sorted([*deaths, *drawn], key=lambda step: step.at)


@BEYOND_THE_GATE
def test_a_storm_leaves_nothing_promised_twice_and_nothing_lost() -> None:
    steps = steps_of(SEED, SECONDS)
    with scratch_directory() as root:
        (root / "profile.yaml").write_text(PROFILE)
        options = WorldOptions(profile=root / "profile.yaml")
        outcome = asyncio.run(run(root, options, seed=SEED, seconds=SECONDS, steps=steps, kinds=KINDS, appenders=1))
    if kept := os.environ.get("KAI_TEST_STORM_LOG"):
        write_log(Path(kept), outcome.events)
    shown = [str(step) for step in steps]
    assert outcome.wrong == [], "\n".join([*shown, *outcome.wrong])
    bound = Counter(decode_payload(event).uid for event in outcome.events if event.type == "PodBound")  # type: ignore[attr-defined]
    assert [uid for uid, times in bound.items() if times > 1] == []
    assert bound, "no pod came through, so nothing was tried"


def test_a_schedule_is_the_same_for_the_same_seed() -> None:
    assert schedule(7, 60, KINDS) == schedule(7, 60, KINDS)
    assert schedule(7, 60, KINDS) != schedule(8, 60, KINDS)
    # A kind that cannot be had on a machine leaves the others as they are.
    assert schedule(7, 60, KINDS[1:]) == [step for step in schedule(7, 60, KINDS) if step.kind != KINDS[0].name]


def test_every_kind_of_fault_has_a_row_in_the_record() -> None:
    record = (Path(__file__).parents[2] / "docs/reliability.md").read_text()
    assert [kind.name for kind in KINDS if f"| `{kind.name}` | {kind.text} |" not in record] == []
