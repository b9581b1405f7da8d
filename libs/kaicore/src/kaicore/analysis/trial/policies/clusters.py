"""Generated clusters for a policy: nodes with charges, work, groups and queues, drawn from one seed.

Labels, annotations and inputs are those that the policy declares. Their values are partly such as a policy may expect
(`true`, a number, a name) and partly absent. So a policy that cannot do without one of them shows it here.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kaicore.policy import Facts, Input, Ints, Nodes, Policy, Queue, Running, Texts, Waiting, Work

CPU, MEMORY, GPU, PODS = "cpu", "memory", "nvidia.com/gpu", "pods"

#: Values of labels and annotations: absent, and of several kinds.
_VALUES = ("", "true", "false", "a", "b", "a.b", "r-1", "r-2", "7", "48", "100000", "2026-12-24T18:00:00Z", "ü")
_NAMESPACES = ("default", "research", "serving", "batch")
_DAY_US = 86_400_000_000
_NOW_US = 1_790_000_000_000_000


@dataclass(frozen=True, slots=True)
class DrawnNodes:
    """Columns of nodes, from which `Nodes` are made: each time anew, so that no call sees what another did.

    Attributes:
        labels: by key.
        allocatable: by resource.
        used: by resource.
        pods: by namespace.
        inputs: by name, then by node.
    """

    names: tuple[str, ...]
    labels: Mapping[str, Texts]
    allocatable: Mapping[str, Ints]
    used: Mapping[str, Ints]
    pods: Mapping[str, Ints]
    inputs: Mapping[str, Mapping[str, Input]]

    def nodes(self, policy: Policy) -> Nodes:
        """Return copies of the columns, as the policy sees them."""
        return Nodes(
            self.names,
            labels={key: values.copy() for key, values in self.labels.items()},
            allocatable={name: amounts.copy() for name, amounts in self.allocatable.items()},
            used={name: amounts.copy() for name, amounts in self.used.items()},
            pods={name: counts.copy() for name, counts in self.pods.items()} if policy.tenants else None,
            inputs={name: dict(of_nodes) for name, of_nodes in self.inputs.items()},
        )

    def ordered(self, order: Ints) -> "DrawnNodes":
        """Return the same nodes in another order: row `i` is what row `order[i]` was."""
        return DrawnNodes(
            tuple(self.names[row] for row in order.tolist()),
            {key: values[order] for key, values in self.labels.items()},
            {name: amounts[order] for name, amounts in self.allocatable.items()},
            {name: amounts[order] for name, amounts in self.used.items()},
            {name: counts[order] for name, counts in self.pods.items()},
            self.inputs,
        )

    def charged(self, row: int, work: Work) -> "DrawnNodes":
        """Return the nodes with one more pod on a row."""
        used = {name: amounts.copy() for name, amounts in self.used.items()}
        for name, amount in work.requests.items():
            used.setdefault(name, np.zeros(len(self.names), np.int64))[row] += amount
        pods = {name: counts.copy() for name, counts in self.pods.items()}
        pods.setdefault(work.namespace, np.zeros(len(self.names), np.int64))[row] += 1
        return replace(self, used=used, pods=pods)


@dataclass(frozen=True, slots=True)
class Drawn:
    """A cluster and what asks for a place in it.

    Attributes:
        what: it is, for people.
        nodes: with their charges.
        work: classes of pods.
        groups: that wait, each with its queue.
        running: groups that may be victims.
    """

    what: str
    nodes: DrawnNodes
    work: Sequence[Work]
    groups: Sequence[tuple[Waiting, Queue]]
    running: Sequence[Running]
    facts: Facts


def drawn_clusters(policy: Policy, *, seed: int, count: int) -> Iterator[Drawn]:
    """Yield clusters: some at the edge of what there is, then random ones.

    Args:
        policy: its declarations say which labels and inputs there are.
    """
    edges = (("no nodes", 0), ("one node", 1), ("nodes without labels", 7), ("full nodes", 7))
    for number in range(count):
        random = np.random.default_rng((seed, number))
        what, size = edges[number] if number < len(edges) else ("", int(random.integers(2, 65)))
        yield draw(policy, random, size, what=what or f"{size} nodes", bare="without" in what, full="full" in what)


def draw(
    policy: Policy,
    random: np.random.Generator,
    size: int,
    *,
    what: str = "",
    works: int = 3,
    bare: bool = False,
    full: bool = False,
) -> Drawn:
    """Return a cluster of so many nodes.

    Args:
        policy: see `drawn_clusters`.
        bare: without labels and inputs.
        full: with all charged.
    """
    facts = Facts(
        now_us=_NOW_US + int(random.integers(0, 14 * _DAY_US)),
        inputs={} if bare else {name: _input(random) for name in policy.inputs if random.random() < 0.7},
    )
    queues = [_queue(random, name) for name in ("team", "batch")]
    classes = [_work(policy, random, bare=bare) for _ in range(works)]
    groups = [(_waiting(policy, random, facts, bare=bare), queues[number % 2]) for number in range(4)]
    running = [_running(policy, random, bare=bare) for _ in range(4)]
    return Drawn(what, _nodes(policy, random, size, bare=bare, full=full), classes, groups, running, facts)


def _nodes(policy: Policy, random: np.random.Generator, size: int, *, bare: bool, full: bool) -> DrawnNodes:
    names = tuple(f"node-{number:05}" for number in random.permutation(size).tolist())
    allocatable: dict[str, Ints] = {
        CPU: random.choice([0, 8_000, 64_000, 256_000], size),
        MEMORY: random.choice([0, 2**35, 2**40], size),
        GPU: random.choice([0, 1, 4, 8], size),
        PODS: np.full(size, 110, np.int64),
    }
    used = {
        name: amounts.copy() if full else (amounts * random.random(size)).astype(np.int64)
        for name, amounts in allocatable.items()
    }
    labels: dict[str, Texts] = {
        key: np.full(size, "", np.str_) if bare else random.choice(np.array(_VALUES, np.str_), size)
        for key in policy.node_labels
    }
    pods: dict[str, Ints] = {name: random.choice([0, 0, 0, 1, 5], size) for name in _NAMESPACES}
    inputs: dict[str, dict[str, Input]] = {
        name: {} if bare else {node: _input(random) for node in names if random.random() < 0.7}
        for name in policy.inputs
    }
    return DrawnNodes(names, labels, allocatable, used, pods, inputs)


def _input(random: np.random.Generator) -> Input:
    return int(random.integers(-10, 10**6)) if random.random() < 0.7 else str(random.choice(_VALUES))


def _texts(keys: Sequence[str], random: np.random.Generator, *, bare: bool) -> dict[str, str]:
    return {} if bare else {key: str(random.choice(_VALUES)) for key in keys if random.random() < 0.7}


def _whose(policy: Policy, random: np.random.Generator, *, bare: bool) -> dict[str, Any]:
    """Return what work, waiting groups and running groups have alike."""
    return {
        "namespace": str(random.choice(_NAMESPACES)),
        "queue": str(random.choice(["", "team", "batch"])),
        "priority": int(random.choice([-5, 0, 50, 2_000_000_000])),
        "gpus": int(random.choice([0, 250, 1_000, 8_000, 64_000])),
        "labels": _texts(policy.pod_labels, random, bare=bare),
        "annotations": _texts(policy.pod_annotations, random, bare=bare),
    }


def _past(random: np.random.Generator) -> dict[str, Any]:
    """Return the GPU time that a group and its namespace have had."""
    return {
        "used_gpu_seconds": int(random.choice([0, 3_600, 10**9])),
        "namespace_use": int(random.integers(0, 10**6)),
    }


def _work(policy: Policy, random: np.random.Generator, *, bare: bool) -> Work:
    alike = _whose(policy, random, bare=bare)
    requests = {CPU: int(random.choice([0, 100, 8_000])), MEMORY: 2**30, PODS: 1}
    if alike["gpus"] >= 1_000:
        requests[GPU] = alike["gpus"] // 1_000
    return Work(**alike, preemptible=bool(random.random() < 0.5), requests=requests)


def _waiting(policy: Policy, random: np.random.Generator, facts: Facts, *, bare: bool) -> Waiting:
    waited = int(random.choice([0, 1, 3_600_000_000, 30 * _DAY_US]))
    return Waiting(
        **_whose(policy, random, bare=bare),
        key=f"group-{int(random.integers(1_000))}",
        created_us=facts.now_us - waited,
        waited_us=waited,
        **_past(random),
        pods=int(random.integers(1, 65)),
    )


def _running(policy: Policy, random: np.random.Generator, *, bare: bool) -> Running:
    ran = int(random.choice([0, 60_000_000, _DAY_US]))
    return Running(
        **_whose(policy, random, bare=bare),
        **_past(random),
        key=f"group-{int(random.integers(1_000))}",
        pods=int(random.integers(1, 65)),
        running_us=ran,
        lost_us=int(random.integers(0, ran + 1)),
    )


def _queue(random: np.random.Generator, name: str) -> Queue:
    return Queue(
        name=name,
        quota=int(random.choice([-1, 0, 64_000])),
        used=int(random.integers(0, 128_000)),
        fair_share=int(random.integers(0, 128_000)),
        past_use=int(random.integers(0, 10**6)),
    )
