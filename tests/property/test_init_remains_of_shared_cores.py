"""The remains of init containers on nodes with two CPUs a core, against the simulated kubelet.

Which cores of a zone are half free decides whether a sidecar or an app container takes a CPU that an init container
lent, or another one; no record tells which those are. Pods are drawn by seeds, odd CPUs and init containers with
sidecars preferred, so the figures are always the same.
"""

import random
from collections import Counter
from typing import Any

import pytest
from kai_fleet.kubelet import Kubelet
from kai_fleet.kubelet.kubelet import allocatable, available
from kaicore.rules.numa.kubelet.verdict import Admitted

from tests.fidelity.history import Knowledge, NodeHistory
from tests.given.examples import examples
from tests.property.test_two_models import admitted, build, node_of

SEEDS, STEPS = examples(200), 40


def test_what_init_containers_with_sidecars_keep_is_hardly_ever_counted_too_low() -> None:
    counts: Counter[str] = Counter()
    for seed in range(SEEDS):
        counts += run(random.Random(seed))
    assert counts["with init containers"] > 6 * SEEDS
    assert counts["with sidecars too"] > 3 * SEEDS
    # Without the CPUs that are perhaps kept besides, it was about 2 % of them, and 14 pods in 300 seeds. In 900 seeds
    # it is 1 of 8,199: an account that has a CPU too many.
    assert counts["kept and not counted"] <= 1
    assert counts["let in wrongly"] <= 2
    assert counts["refused though they fit"] <= counts["pods"] / 100


@pytest.mark.parametrize("seed", [48, 653, 779])
def test_what_is_kept_where_it_is_open_how_much_earlier_pods_hold_is_counted(seed: int) -> None:
    counts = run(random.Random(seed))
    assert counts["with init containers"]
    assert not counts["kept and not counted"], "one pod of each seed kept a CPU more than was counted"


def run(chance: random.Random) -> Counter[str]:
    """One node, pods coming and going."""
    scenario, kubelet = node_with_two_threads_a_core(chance)
    history = NodeHistory(scenario, Knowledge(cautious=True))
    history.install()
    counts: Counter[str] = Counter()
    live: list[str] = []
    for number in range(STEPS):
        if live and chance.random() < 0.35:
            gone = live.pop(chance.randrange(len(live)))
            kubelet.terminated(gone)
            kubelet.sweep()
            history.removed({"op": "remove", "pod": gone})
            history.published({"available": available(kubelet)})
            continue
        first, apps = containers(chance)
        event = admitted(kubelet, f"p{number}", first, apps, "Guaranteed")
        kubelet.sweep()
        prediction = history.predict(event)
        counts["pods"] += 1
        admits = isinstance(prediction.verdict, Admitted)
        counts["let in wrongly"] += admits and not event["admit"]
        counts["refused though they fit"] += event["admit"] and not admits
        if not event["admit"]:
            history.rejected(event, prediction)
        else:
            live.append(event["pod"])
            history.admitted(event, prediction)
            kinds = {kind for kind, _ in first}
            if isinstance(prediction.verdict, Admitted) and "init" in kinds and masks_agree(event, prediction.verdict):
                counts["with init containers"] += 1
                counts["with sidecars too"] += "sidecar" in kinds
                counts["kept and not counted"] += counted(prediction) < held(kubelet, event["pod"])
        history.published({"available": available(kubelet)})
    return counts


def node_with_two_threads_a_core(chance: random.Random) -> tuple[dict[str, Any], Kubelet]:
    cpus, reserved = chance.choice([16, 32, 64]), chance.choice([0, 1, 2])
    node = node_of(
        {
            "zones": 2,
            "zones_per_socket": 1,
            "memory": 64,
            "hugepages": False,
            "by_socket": False,
            "policy": "single-numa-node",
            "scope": chance.choice(["container", "pod"]),
            "cpus": cpus,
            "reserved": reserved,
            "gpus": [0] * 4,
            "nics": [0] * 4,
            "static": (True, False),
        }
    )
    half = cpus // 2
    node["threads_per_core"] = 2
    node["cpu_ids"] = [
        f"{z * half}-{z * half + half - 1},{cpus + z * half}-{cpus + z * half + half - 1}" for z in (0, 1)
    ]
    node["reserved_cpu_ids"] = ("", "0", f"0,{cpus}")[reserved]
    kubelet = build(node)
    node["allocatable"] = allocatable(kubelet)
    scenario = {"id": "cores", "tags": [], "profile": "", "node": node, "events": []}
    return {**scenario, "initial_available": available(kubelet)}, kubelet


def containers(chance: random.Random) -> tuple[list[Any], list[dict[str, int]]]:
    first = [
        (chance.choice(["init", "sidecar"]), {"cpu": 1000 * chance.choice([1, 1, 2, 3, 4, 5]), "memory": 1})
        for _ in range(chance.choice([0, 0, 1, 2, 3]))
    ]
    apps = [{"cpu": 1000 * chance.choice([1, 1, 1, 2, 3, 4, 5]), "memory": 1} for _ in range(chance.choice([1, 1, 2]))]
    return first, apps


def masks_agree(event: dict[str, Any], verdict: Admitted) -> bool:
    masks = [sum(1 << zone for zone in item["affinity"] or ()) for item in event["alloc"]]
    return masks == [holding.mask for holding in verdict.holdings]


def counted(prediction: Any) -> int:
    return sum(amount for _, resource, amount in prediction.placement.charge.amounts if resource == "cpu")


def held(kubelet: Kubelet, uid: str) -> int:
    cpus = 0
    for of_container in kubelet.managers.cpus.assigned.get(uid, {}).values():
        cpus |= of_container
    return 1000 * cpus.bit_count()
