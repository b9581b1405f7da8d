"""The exporter's account of every recorded admission, read through podresources, against the real kubelet's own.

The recorded kubelets (shared/data/kubelet) say after each event what the pod has taken of each zone. The model replays
the events, its podresources answers go through the exporter, and the two accounts must agree: CPUs and devices zone by
zone, memory by its sum, because the split of a block of several zones is unknown.
"""

from collections import Counter
from itertools import islice

import pytest
from kai_exporter.node_pods import NodePods
from kai_fleet.kubelet.machine import members
from kai_fleet.node.podresources_server import list_pods

from tests.given.examples import FEW
from tests.given.shared_data import require_shared
from tests.tools.fleet.vectors import Json, build, pod_of, scenarios

_Account = dict[str, list[int]]


def _is_memory(resource: str) -> bool:
    return resource == "memory" or resource.startswith("hugepages-")


def _summed(account: _Account) -> _Account:
    """Without zeros, and memory as one sum."""
    summed = {name: [sum(row)] if _is_memory(name) else row for name, row in account.items()}
    return {name: row for name, row in summed.items() if any(row)}


class _Reader:
    """An exporter at a replayed kubelet."""

    def __init__(self, scenario: Json) -> None:
        self.kubelet = build(scenario["node"])
        self._zones = scenario["node"]["zones"]
        cpus = enumerate(self.kubelet.machine.zone_cpus)
        self._numa_node_of_cpu = {cpu: zone for zone, ids in cpus for cpu in members(ids)}
        self._node = NodePods("n1", poll_s=1, drift_s=60)
        self.accounts: dict[str, _Account] = {}

    def poll(self) -> None:
        answer = list_pods(self.kubelet).SerializeToString()
        for _ in range(2):
            problems = self._node.take(answer, now=0, observed_at=1, numa_node_of_cpu=self._numa_node_of_cpu)
            assert problems == []
        sent = self._node.outgoing(now=0)
        if sent is None:
            return
        self._node.answered(sent, unknown=set(), refused=set(), now=0)
        for pod in sent.pods:
            account: _Account = {}
            for container in pod.containers:
                parts = [((zone.zone,), zone.amount) for zone in container.zones]
                for zones, held in [*parts, *((span.zones, span.amount) for span in container.spans)]:
                    for resource, amount in held.items():
                        row = account.setdefault(resource, [0] * self._zones)
                        # A device of two zones counts in both, there as here; a block of memory counts once.
                        for zone in zones[:1] if _is_memory(resource) else zones:
                            row[int(zone.removeprefix("node-"))] += amount
            self.accounts[pod.name] = account


@pytest.mark.parametrize("name", ["mini.jsonl.gz", "worked_examples.jsonl.gz"])
def test_the_exporter_accounts_as_the_kubelet_does(name: str) -> None:
    checked: Counter[str] = Counter()
    wrong: list[str] = []
    for scenario in islice(scenarios(require_shared(f"data/kubelet/{name}")), None, None, 3 if FEW else 1):
        reader = _Reader(scenario)
        for index, event in enumerate(scenario["events"]):
            reader.kubelet.sweep()
            if event["op"] == "admit":
                reader.kubelet.admit(pod_of(event))
            elif event["op"] == "start":
                reader.kubelet.containers_started(event["pod"])
            else:
                reader.kubelet.terminated(event["pod"])
            reader.kubelet.sweep()
            reader.poll()
            if event["pod"] not in reader.kubelet.pods:
                continue
            got = _summed(reader.accounts[event["pod"]])
            expected = _summed(event.get("observed", event.get("placement", {})))
            checked.update(expected.keys())
            if got != expected:
                wrong.append(f"{scenario['id']}[{index}] {event['op']} {event['pod']}: {got}, the kubelet: {expected}")
    assert checked["cpu"] > 0
    assert wrong == [], f"{len(wrong)} of {checked.total()}"
