"""Ten policies of an operator at once, none live: CPU of a cycle with them by that of others without, in turns.

Policies cost time, and cycles that decide otherwise take another time. So each cycle is held against one without
policies that decides the same: the plain one, where answers change no decision; else one with the same order of groups
and the same nodes, which are given to it. The last figure is of a live policy.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np
from kai_scheduler.scheduler import Collecting
from kaicore.policy import Facts, Flags, Hold, Ints, Nodes, Policy, PolicyBand, Queue, Waiting, Work
from kaicore.rules.deciding.decide import Proposal, decide
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.placement.feasible_nodes import FeasibleNodes
from kaicore.rules.engine.placement.placer import Assignment, Placer
from kaicore.rules.engine.policies.book import PolicyBook
from kaicore.rules.engine.policies.cycle_policies import GroupPolicies
from kaicore.rules.engine.session import session
from kaicore.rules.engine.work.pending_group import PendingGroup
from kaicore.rules.events import payloads
from kaicore.rules.groups.labels import KAI_QUEUE_LABEL
from kaicore.runtime.policies.guard import TimeAndMemory
from kaicore.runtime.policies.loading import load_policy

from tests.given.cluster.factory import amounts, pod
from tests.given.cluster.hierarchy import queue
from tests.given.work.policies import setting_of
from tests.given.work.workloads import OWNER, Workloads
from tests.measured.bench.engine import started
from tests.measured.bench.figures import Figure, figure, paired

_EXAMPLES = Path(__file__).parents[3] / "examples" / "policies"
RACK, YEAR = "topology.example/rack", "hardware.example/year"


class OldNodesLast(Policy):
    """Score: by the year of a node."""

    name, version, node_labels = "old-nodes-last", "1", (YEAR,)

    def score(self, nodes: Nodes, work: Work, facts: Facts) -> Ints:
        years = nodes.labels(YEAR)
        return np.where(np.char.isdecimal(years), np.where(years >= "2022", 300, 100), 0)


class FullRacks(Policy):
    """Score: racks with more GPUs in use come first; in place of packing by nodes."""

    name, version, node_labels, band = "full-racks", "1", (RACK,), PolicyBand.FULL

    def score(self, nodes: Nodes, work: Work, facts: Facts) -> Ints:
        _, racks = nodes.domains(RACK)
        used = np.bincount(racks, weights=nodes.used("nvidia.com/gpu")).astype(np.int64)
        return np.minimum(used[racks], 1000)


class NewWorkOnNewNodes(Policy):
    """Filter: work of a high priority needs a node of the last years."""

    name, version, node_labels, reason = "new-work-on-new-nodes", "1", (YEAR,), "the node is old"

    def filter(self, nodes: Nodes, work: Work, facts: Facts) -> Flags:
        return (nodes.labels(YEAR) >= "2021") | (work.priority < 1000)


class QuietQueues(Policy):
    """Admission: a queue with three times its quota in use starts nothing more."""

    name, version = "quiet-queues", "1"

    def admit(self, group: Waiting, queue: Queue, facts: Facts) -> Hold | None:
        return Hold("the queue has enough") if 0 <= 3 * queue.quota < queue.used else None


def changing_nothing(kind: type[Policy]) -> type[Policy]:
    """The same policy, which works out its answers, and gives such as change no decision."""
    answers: dict[str, Any] = {
        "score": lambda self, *given: kind.score(self, *given) * 0,
        "filter": lambda self, *given: kind.filter(self, *given) | True,
        "order": lambda self, *given: kind.order(self, *given) * 0,
        "admit": lambda self, *given: kind.admit(self, *given) and None,
        "victims": lambda self, *given: kind.victims(self, *given) * 0,
    }
    own = {point: answers[point] for point in kind.points()}
    return type(kind.__name__, (kind,), own | {"band": PolicyBand.PREFERRED, "order_before_priority": False})


#: Files of examples with their arguments, and classes of this module.
SHARED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("aging", {}),
    ("business_hours", {"gpus": 64}),
    ("deadline_first", {}),
    ("least_attained_service", {}),
    ("near_the_data", {}),
    ("spot_last", {}),
)
_ZONE = amounts(cpu=64, memory=512, gpu=4)
OWN = (OldNodesLast, NewWorkOnNewNodes, QuietQueues, FullRacks)
_RUNS = 24


def cluster(count: int = 10_000, groups: int = 1_000) -> Workloads:
    """Six running pods per node, and gangs of ten that wait, in 8 queues; some have data or a deadline."""
    made = Workloads()
    for number in range(count):
        labels = {
            "topology.example/rack": f"rack-{number // 16:04}",
            "cloud.example/spot": str(number % 5 == 0).lower(),
            "data.example/datasets": ".".join(f"set-{number % size}" for size in (7, 11, 13)),
            "hardware.example/year": str(2020 + number % 5),
        }
        made.add_node(f"n{number:05}", _ZONE, _ZONE, policy="restricted", labels=labels)
    for number in range(8):
        made.record(f"queue/team-{number}", payloads.QueueObserved(queue(f"team-{number}", quota=count)))
    for number in range(count * 6):
        labels = {KAI_QUEUE_LABEL: f"team-{number % 8}"}
        spec: dict[str, Any] = {"cpu": 1 + number % 7, "memory": 8 + number % 5, "gpu": 1}
        made.add_pod(pod(f"run-{number:06}", owner=OWNER, created_at=number // 50, labels=labels, **spec))
    started(made)
    for number in range(groups):
        labels = {KAI_QUEUE_LABEL: f"team-{number % 8}"}
        if number % 4 == 0:
            labels["data.example/dataset"] = f"set-{number % 13}"
        if number % 10 == 0:
            labels["deadline.example/hours"] = str(1 + number % 48)
        gang: dict[str, Any] = {"cpu": 2 + number % 8, "memory": 16 + number % 5, "gpu": 1}
        made.gang(f"gang-{number:05}", 10, created_at=10_000 + number, labels=labels, **gang)
    return made


def with_policies(
    examples: Sequence[tuple[str, dict[str, Any]]], kinds: Sequence[type[Policy]]
) -> tuple[EngineConfig, PolicyBook]:
    """Settings with policies, and the book of their code, under the guard of the scheduler."""
    book, settings = PolicyBook(TimeAndMemory()), []
    for name, arguments in examples:
        loaded = load_policy(str(_EXAMPLES / f"{name}.py"), arguments, guard=book.guard)
        book.add(loaded.kind, loaded.setting.digest)
        settings.append(loaded.setting)
    for kind in kinds:
        settings.append(setting_of(kind))
        book.add(kind, settings[-1].digest)
    return msgspec.structs.replace(EngineConfig(), policies=tuple(settings)), book


def cpu_ms(made: Workloads, config: EngineConfig, book: PolicyBook) -> tuple[float, Proposal]:
    """CPU of one cycle, milliseconds."""
    began = time.process_time()
    proposal = decide(made.state, config, shard="default", now=made.now, actor="bench", policies=book)
    took = (time.process_time() - began) * 1e3
    assert not proposal.policies_left_out, proposal.policies_left_out
    return took, proposal


def one_by_one_ms(made: Workloads, config: EngineConfig, book: PolicyBook) -> tuple[float, Proposal]:
    """CPU of a cycle that puts pods on nodes one by one, milliseconds: so `deciding_as` may give each a node."""
    with patch.object(FeasibleNodes, "foresees", False):
        return cpu_ms(made, config, book)


def deciding_as(made: Workloads, decided: Proposal) -> tuple[float, Proposal]:
    """CPU of a cycle without policies that decides as another one did: a node is looked for as ever, and then given."""
    row_of, pods = made.state.columns.rows, decided.result.placements
    rows = {one.uid: row_of[one.node] for one in pods}
    ranks = {made.state.pods[one.uid].group: rank for rank, one in reversed([*enumerate(pods)])}
    pending_groups, put = session.pending_groups, Placer._put

    def given(placer: Placer, member: Any, _: int, feasible: Any, pod_class: Any) -> Assignment:
        return put(placer, member, rows[member.pod.uid], feasible, pod_class)

    def in_order(*given: Any, **_: Any) -> Mapping[str, PendingGroup]:
        groups = pending_groups(*given)
        for key, one in groups.items():
            one.rank = ranks.get(key, len(rows))
        return groups

    with ExitStack() as patches:
        patches.enter_context(patch.object(Placer, "_put", given))
        patches.enter_context(patch.object(session, "pending_groups", in_order))
        took, proposal = one_by_one_ms(made, EngineConfig(), PolicyBook())
    assert [(one.uid, one.node) for one in proposal.result.placements] == [(one.uid, one.node) for one in pods]
    return took, proposal


def settling_ms(made: Workloads, config: EngineConfig, book: PolicyBook) -> float:
    """CPU of a cycle's orders and holds, milliseconds: each group's facts, and each policy asked about it."""
    settle, took = GroupPolicies.settle, list[float]()

    def timed(policies: GroupPolicies, groups: Mapping[str, PendingGroup]) -> None:
        began = time.process_time()
        settle(policies, groups)
        took.append((time.process_time() - began) * 1e3)

    with patch.object(GroupPolicies, "settle", timed):
        cpu_ms(made, config, book)
    return took[0]


def figures() -> Iterator[Figure]:
    """Measure; the arms follow each other cycle by cycle, for other work on the machine comes and goes."""
    made = cluster()
    # As a scheduler has it: else what one arm makes is looked through in the time of another.
    collecting = Collecting()
    config, book = with_policies(SHARED, OWN)
    kinds = (*(load_policy(str(_EXAMPLES / f"{name}.py")).kind for name, _ in SHARED), *OWN)
    silent = with_policies((), [changing_nothing(kind) for kind in kinds])
    live = with_policies((("rack_power", {"watts_per_rack": 70_000}),), ())
    decided = cpu_ms(made, config, book)[1]
    arms: dict[str, Callable[[], tuple[float, Proposal]]] = {
        "without": lambda: cpu_ms(made, EngineConfig(), PolicyBook()),
        "unchanged": lambda: cpu_ms(made, *silent),
        "same": lambda: deciding_as(made, decided),
        "one by one": lambda: one_by_one_ms(made, config, book),
        "beside": lambda: cpu_ms(made, config, book),
    }
    ms: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(_RUNS):
        # Back and forth, so that what grows or fades within a run is in both of a pair alike.
        for name in sorted(arms, key=list(arms).index, reverse=bool(number % 2)):
            ms[name].append(arms[name]()[0])
            collecting.cycle_is_over()
    settling = [settling_ms(made, config, book) for _ in range(_RUNS // 4)]
    # The guard's budget is for a core that others leave alone.
    live[1].guard = TimeAndMemory(budget_s=10.0)
    live_ms = [cpu_ms(made, *live)[0] for _ in range(_RUNS // 4)]
    what = f"10000 nodes, 1000 gangs of 10 of 40 shapes in 8 queues, {len(decided.result.placements)} placed"
    yield figure(f"engine: CPU of a cycle without policies: {what}", ms["without"], "ms")
    yield figure("engine: CPU of the same cycle with ten policies that are asked once", ms["beside"], "ms")
    yield figure("engine: CPU of a cycle without policies that decides the same as these", ms["same"], "ms")
    yield figure("engine: CPU of it for orders and holds: five policies, group by group", settling, "ms")
    for held_against, others, own in (
        ("ten policies, by a cycle without that decides the same (aim: 1.1)", "same", "one by one"),
        ("ten policies that change no decision, by a cycle without (aim: 1.1)", "without", "unchanged"),
        ("ten policies, by a cycle without, which decides otherwise", "without", "beside"),
    ):
        yield paired(f"engine: CPU of a cycle with {held_against}", ms[own], ms[others])
    yield figure("engine: CPU of the same cycle with rack-power, which is live", live_ms, "ms")
