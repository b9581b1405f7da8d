"""The decisions of each version's managers on a pod with exclusive CPUs that was resized in place, and after a restart.

Recorded by `python -m tests.fidelity.kubelet_recorder --resizes VERSION`, with InPlacePodVerticalScalingExclusiveCPUs.
`CHANGES` of `kaicore.rules.numa.kubelet.versions` says so in words, and decision 0452 rests on it: CPUs stay.
"""

from pathlib import Path

import msgspec
import pytest

from tests.fidelity.kubelet_recorder import RECORDED
from tests.fidelity.resize_scenarios import POLICIES
from tests.fidelity.vectors import Record

_FILES = sorted(RECORDED.glob("resizes-*.jsonl"))
_ALIGNING = frozenset(("restricted", "single-numa-node"))


def recorded(minor: int, policy: str) -> list[Record]:
    """Return what a version answered to 4 CPUs, 6, 8, and a restart."""
    file = next(RECORDED.glob(f"resizes-v1.{minor}.*.jsonl"))
    answers = [msgspec.json.decode(line, type=Record) for line in file.read_bytes().splitlines()]
    events: list[Record] = next(one["events"] for one in answers if one["id"] == f"resize-{policy}")
    assert [event["op"] for event in events] == ["admit", "resize", "resize", "restart"]
    return events


def _minor(file: Path) -> int:
    return int(file.name.split(".")[1])


@pytest.mark.parametrize("file", _FILES, ids=lambda file: file.stem)
def test_exclusive_cpus_stay_as_they_were_whatever_is_asked(file: Path) -> None:
    for policy in POLICIES:
        cpus = [event["alloc"][0]["cpu_ids"] for event in recorded(_minor(file), policy)]
        assert cpus == [cpus[0]] * 4, policy


@pytest.mark.parametrize("file", _FILES, ids=lambda file: file.stem)
def test_policies_that_align_nothing_take_each_resize(file: Path) -> None:
    for policy in set(POLICIES) - _ALIGNING:
        assert [event["admit"] for event in recorded(_minor(file), policy)[1:]] == [True, True, True], policy


@pytest.mark.parametrize("policy", sorted(_ALIGNING))
@pytest.mark.parametrize(
    ("minor", "taken"),
    [
        (33, [True, False, False]),
        (34, [True, False, False]),
        (35, [False, False, True]),
        (36, [False, False, True]),
        (37, [True, True, False]),
    ],
)
def test_aligning_policies_take_the_first_resize_up_to_1_34_none_in_1_35_each_in_1_37(
    minor: int, taken: list[bool], policy: str
) -> None:
    """`pkg/kubelet/cm/cpumanager/policy_static.go`, guaranteedCPUs: of the status up to 1.34, of the spec after it;
    1.37 has no hints for a resize.

    A kubelet that has taken one and is restarted refuses the pod, for its CPUs are not as many as it asks for.
    """
    events = recorded(minor, policy)[1:]
    assert [event["admit"] for event in events] == taken
    assert {event.get("reason", "") for event in events if not event["admit"]} == {"TopologyAffinityError"}
