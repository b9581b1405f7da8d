"""Each example of a policy, in cycles of the engine: what it changes, beside the same cluster without it."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from kaicore.policy import Facts, Hold, Queue, Running, Waiting
from kaicore.rules.engine.policies.book import PolicyBook
from kaicore.rules.events import payloads
from kaicore.rules.events.reasons.group import HeldByPolicy
from kaicore.rules.groups.labels import KAI_QUEUE_LABEL
from kaicore.runtime.policies.loading import load_policy
from kaicore.runtime.shard_settings import read_shard_settings

from tests.given.cluster.factory import GPU, pod
from tests.given.cluster.hierarchy import queue
from tests.given.work.policies import WithPolicies
from tests.given.work.workloads import OWNER

EXAMPLES = Path(__file__).parents[3] / "examples/policies"
_HOUR_S = 3_600
_HOUR_US = _HOUR_S * 1_000_000


class Ruled(WithPolicies):
    """A cluster with one example's policy, or without any."""

    def __init__(self, example: str = "", **arguments: object) -> None:
        super().__init__()
        self.record("queue/team", payloads.QueueObserved(queue("team", quota=64)))
        if example:
            loaded = load_policy(str(EXAMPLES / f"{example}.py"), arguments)
            self.book.add(loaded.kind, loaded.setting.digest)
            self.config = msgspec.structs.replace(self.config, policies=(loaded.setting,))

    def waits(self, name: str, *, hours: float = 0, **spec: Any) -> None:
        labels = {KAI_QUEUE_LABEL: "team"} | spec.pop("labels", {})
        created_at = self.now // 1_000_000 - int(hours * _HOUR_S)
        self.add_pod(pod(name, created_at=created_at, labels=labels, **({"owner": OWNER, "cpu": 1} | spec)))

    def starts(self) -> dict[str, str]:
        """The nodes of what a cycle starts, by name, in the order in which it decided; a replay decides it, too."""
        starts = self.nodes_of()
        assert self.replayed().differences == []
        return starts


def test_page_has_a_section_for_each_example_with_settings_that_name_all_its_arguments(tmp_path: Path) -> None:
    _, *sections = (EXAMPLES / "README.md").read_text().split("\n## ")
    files = {path.name for path in EXAMPLES.glob("*.py")}
    for section in sections:
        (line,) = re.findall(r"^`(- {.*})`$", section, re.MULTILINE)
        (entry,) = yaml.safe_load(line)
        files.remove(entry["file"])
        settings = tmp_path / "settings.yaml"
        settings.write_text(f"policies:\n{line.replace('file: ', f'file: {EXAMPLES}/')}\n")
        (setting,) = read_shard_settings(settings, PolicyBook()).policies
        assert setting.arguments.keys() == entry.get("arguments", {}).keys()
        looks_at = load_policy(str(EXAMPLES / entry["file"])).kind
        for name in (*looks_at.node_labels, *looks_at.pod_labels, *looks_at.inputs):
            assert name in section
    assert files == set()


@pytest.mark.parametrize(("example", "node"), [("", "spot"), ("spot_last", "stays")])
def test_spot_last_takes_a_node_that_stays_before_a_fuller_spot_node(example: str, node: str) -> None:
    cluster = Ruled(example)
    cluster.add_node("spot", cpu=8, gpu=4, labels={"cloud.example/spot": "true"})
    cluster.add_node("stays", cpu=64, gpu=8)
    cluster.waits("a", gpu=2)
    assert cluster.starts() == {"a": node}
    # Last is not never.
    if example:
        cluster.waits("b", gpu=6)
        cluster.waits("c", gpu=4)
        assert cluster.starts() == {"b": "stays", "c": "spot"}


def test_rack_power_lets_a_rack_take_no_more_than_its_power_within_one_cycle() -> None:
    cluster = Ruled("rack_power", watts_per_gpu=500, watts_per_rack=3_000)
    for number in range(4):
        cluster.add_node(f"n{number}", cpu=64, gpu=8, labels={"topology.example/rack": f"r{number // 2}"})
    for number in range(6):
        cluster.waits(f"p{number}", gpu=3)
    racks = [int(node.removeprefix("n")) // 2 for node in cluster.starts().values()]
    assert sorted(racks) == [0, 0, 1, 1]
    cluster.waits("plain")
    assert list(cluster.starts()) == ["plain"]
    # Another figure is recorded for one node, and so for its rack; then one for all other racks.
    for node, rack in (("n3", 1), ("", 0)):
        cluster.record("policy-input/rack-watts", payloads.PolicyInputRecorded("rack-watts", node, 4_500, "test"))
        assert [int(one.removeprefix("n")) // 2 for one in cluster.starts().values()] == [rack]


@pytest.mark.parametrize(("example", "node"), [("", "full"), ("near_the_data", "near")])
def test_near_the_data_takes_the_node_that_has_the_dataset(example: str, node: str) -> None:
    cluster = Ruled(example)
    cluster.add_node("full", cpu=8, gpu=2, labels={"data.example/datasets": "imagenet22k.c4"})
    cluster.add_node("near", cpu=64, gpu=8, labels={"data.example/datasets": "laion.imagenet"})
    cluster.waits("a", gpu=1, labels={"data.example/dataset": "imagenet"})
    assert cluster.starts() == {"a": node}


@pytest.mark.parametrize(("example", "first"), [("", "high"), ("deadline_first", "soon")])
def test_deadline_first_starts_the_earliest_deadline_whatever_its_priority(example: str, first: str) -> None:
    cluster = Ruled(example)
    cluster.add_node("n0", cpu=64, gpu=8)
    cluster.waits("high", gpu=8, priority=100)
    cluster.waits("late", gpu=8, labels={"deadline.example/hours": "48"})
    cluster.waits("soon", gpu=8, labels={"deadline.example/hours": "3"})
    cluster.waits("odd", gpu=8, labels={"deadline.example/hours": "soon"})
    assert list(cluster.starts()) == [first]


@pytest.mark.parametrize(("hour", "weekday", "starts"), [(3, 1, True), (10, 1, False), (18, 1, True), (10, 6, True)])
def test_business_hours_hold_large_groups_and_say_until_when(hour: int, weekday: int, starts: bool) -> None:
    cluster = Ruled("business_hours", gpus=4)
    # 1970-01-05 was a Monday.
    cluster.now = (4 + 7 * 2_800 + weekday) * 24 * _HOUR_US + hour * _HOUR_US
    cluster.add_node("n0", cpu=64, gpu=16)
    cluster.waits("large", gpu=8)
    cluster.waits("small", gpu=4)
    result = cluster.cycle(cluster.config)
    assert ("large" in cluster.placed(result)) is starts
    assert "small" in cluster.placed(result)
    if not starts:
        (held,) = (reason for one in result.pending for alone in one.alone for reason in alone.reasons)
        assert isinstance(held, HeldByPolicy)
        assert (held.policy, held.why) == ("business-hours", "large groups start after business hours")
        # The scheduler looks again when the hold is over.
        assert result.due == held.until_us == cluster.now // _HOUR_US * _HOUR_US + 8 * _HOUR_US
        cluster.now = cluster.now // _HOUR_US * _HOUR_US + 9 * _HOUR_US
        assert list(cluster.starts()) == ["large"]


def test_not_beside_keeps_two_tenants_off_each_others_nodes_and_no_others() -> None:
    cluster = Ruled("not_beside", apart=[["red", "blue"]])
    cluster.add_nodes(2, cpu=64, gpu=8)
    cluster.waits("a", gpu=1, namespace="red")
    cluster.waits("b", gpu=1, namespace="blue")
    starts = cluster.starts()
    assert starts["a"] != starts["b"]
    cluster.waits("c", gpu=7, namespace="blue")
    cluster.waits("d", gpu=7, namespace="green")
    starts |= cluster.starts()
    assert (starts["c"], starts["d"]) == (starts["b"], starts["a"])
    cluster.waits("e", namespace="blue")
    cluster.waits("f", namespace="red")
    starts |= cluster.starts()
    assert (starts["e"], starts["f"]) == (starts["b"], starts["a"])


@pytest.mark.parametrize(("example", "first"), [("", "high"), ("aging", "old")])
def test_aging_starts_what_waited_long_before_a_higher_priority(example: str, first: str) -> None:
    cluster = Ruled(example, **({"minutes": 30, "most": 5} if example else {}))
    cluster.add_node("n0", cpu=64, gpu=8)
    cluster.waits("high", gpu=8, priority=4)
    cluster.waits("old", gpu=8, hours=3)
    cluster.waits("low", gpu=8, hours=100, priority=-2)
    assert list(cluster.starts()) == [first]


def test_least_attained_service_prefers_groups_and_spares_victims_that_had_little() -> None:
    kind = load_policy(str(EXAMPLES / "least_attained_service.py")).kind
    policy, facts = kind(), Facts()
    orders = [policy.order(Waiting(used_gpu_seconds=hours * _HOUR_S), Queue(), facts) for hours in (0, 2, 20, 500)]
    assert orders == [0, 1, 2, 3]
    costs = [policy.victims(Running(used_gpu_seconds=8 * hours * _HOUR_S), facts) for hours in (0, 1, 5, 100)]
    assert costs == [1000, 666, 333, 0]


@pytest.mark.parametrize(("example", "order"), [("", "aaaa"), ("least_attained_service", "abba")])
def test_least_attained_service_starts_round_by_round_who_had_less_of_the_gpus(example: str, order: str) -> None:
    cluster = Ruled(example, **({"gpu_hours": [1, 10, 40]} if example else {}))
    cluster.add_node("n0", cpu=64, gpu=8)
    first = ""
    for hours in (2, 1, 4, 1):
        for name, waited in (("a", 2), ("b", 1)):
            owner = msgspec.structs.replace(OWNER, name=name, uid=f"uid-{name}")
            cluster.waits(f"{name}{cluster.now}", gpu=8, hours=waited, owner=owner)
        (started,) = cluster.starts()
        first += started[0]
        # It runs for hours and ends; the other one gives up.
        one, other = sorted(cluster.state.pods.values(), key=lambda entry: entry.pod.name != started)
        cluster.run(one.pod)
        cluster.now += hours * _HOUR_US
        cluster.see(one.pod, phase="Succeeded")
        for pod_entry in (one, other):
            cluster.delete_pod(pod_entry.pod)
    assert first == order


def test_hours_before_1970_and_holds_are_plain_numbers() -> None:
    kind = load_policy(str(EXAMPLES / "business_hours.py")).kind
    held = kind(kind.Arguments(east=2)).admit(Waiting(gpus=9_000), Queue(), Facts(now_us=7 * _HOUR_US))
    assert held == Hold("large groups start after business hours", 16 * _HOUR_US)


def test_gpu_is_the_resource_that_examples_name() -> None:
    assert GPU in (EXAMPLES / "rack_power.py").read_text()
