"""Random clusters and workloads: what no cycle may ever do, and that cycles come to rest."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.decisions import ClearReason, CycleResult, EvictionReason
from kaicore.rules.engine.victims.eviction_cost import PodSizes
from kaicore.rules.events import payloads
from kaicore.rules.groups.labels import KAI_QUEUE_LABEL
from kaicore.rules.model.pod import PodDisruptionBudget, PodRules, PodTerm, SpreadConstraint
from kaicore.rules.model.selector import PodSelector, Requirement
from kaicore.rules.queues.tree import UNLIMITED
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.snapshot import decode_state, encode_state

from tests.given.cluster.factory import amounts
from tests.given.cluster.hierarchy import queue
from tests.given.examples import examples
from tests.given.logs.replaying import replayed
from tests.given.work.groups import job
from tests.given.work.workloads import OWNER, Workloads
from tests.property.test_ledger_invariants import check_accounts

zones = st.lists(
    st.builds(amounts, cpu=st.integers(4, 12), memory=st.integers(8, 32), gpu=st.integers(0, 4)), min_size=1, max_size=2
)
nodes = st.lists(
    st.tuples(zones, st.sampled_from(("single-numa-node", "restricted", "best-effort", "none"))), min_size=1, max_size=4
)
near = [
    PodTerm(key, PodSelector(("default",), None, (Requirement("app", "In", (app,)),)))
    for key in ("host", "row")
    for app in ("a", "b")
]
rules = st.one_of(
    st.none(),
    st.builds(PodRules, anti_affinity=st.sampled_from(near).map(lambda term: (term,))),
    st.builds(PodRules, affinity=st.sampled_from(near).map(lambda term: (term,))),
    st.builds(
        PodRules,
        spread=st.sampled_from(near).map(lambda term: (SpreadConstraint(1, term.topology_key, term.selector),)),
    ),
)


def specs_of(*, gpus: int, **more: Any) -> Any:
    """Pods that ask for so many GPUs at most, and for more than amounts."""
    amounts = {"cpu": st.integers(1, 4), "memory": st.integers(1, 8), "gpu": st.integers(0, gpus)}
    labels = st.sampled_from(("", "a", "b")).map(lambda app: {"app": app})
    return st.fixed_dictionaries({**amounts, "priority": st.integers(0, 3), "labels": labels, **more})


specs = specs_of(gpus=4, rules=rules)


@dataclass(frozen=True)
class Step:
    what: str
    pick: int = 0
    detail: Any = None


shares = st.fixed_dictionaries(
    {"quota": st.integers(0, 8), "limit": st.one_of(st.just(UNLIMITED), st.integers(2, 8)), "weight": st.integers(0, 2)}
)
flat = st.fixed_dictionaries({"a": shares, "b": shares})
#: Two teams of a department, and one beside it.
deep = st.fixed_dictionaries({"d": shares, "d/a": shares, "d/b": shares, "c": shares})
queues = st.one_of(st.none(), flat, deep)
#: How many pods of the app `a` may be evicted at once, and how many seconds groups have before they may be.
protection = st.tuples(st.sampled_from((None, 0, 0, 1)), st.sampled_from((0, 45)))
groups = st.tuples(st.integers(1, 4), st.integers(0, 4), st.sampled_from((0, 0, 1, 2)), specs)
rounds = st.tuples(
    st.lists(groups, min_size=1, max_size=3),
    st.lists(
        st.builds(
            Step,
            st.sampled_from(("go", "fail", "delete", "time", "recreate", "restart", "nominate")),
            st.integers(0, 99),
        ),
        max_size=4,
    ),
)
GPU = "nvidia.com/gpu"


def is_short(state: ClusterState, uid: str) -> bool:
    """Tell whether a pod's group has not as many pods as start together."""
    workload = state.workload_index.workloads[state.pods[uid].group]
    members = (*workload.active.values(), *workload.waiting.values())
    return not workload.satisfied(Counter(map(workload.leaf, members)))


class Story:
    """A cluster to which things happen, looked at after every cycle."""

    def __init__(
        self, layout: list[Any], queues: dict[str, Any] | None, protection: tuple[int | None, int] = (None, 0)
    ) -> None:
        self.cluster = Workloads()
        self.cluster.compares_indexes = True
        self.count = 0
        #: When groups were last moved.
        self.moved: dict[str, int] = {}
        #: By path: `d/a` is below `d`.
        self.queues = queues or {}
        self.allowed, seconds = protection
        self.runtime_us = seconds * 1_000_000
        for path, share in self.queues.items():
            above, _, _ = path.rpartition("/")
            runtimes = dict.fromkeys(("preempt_min_runtime_us", "reclaim_min_runtime_us"), self.runtime_us)
            self.cluster.record(f"queue/{path}", payloads.QueueObserved(queue(path, above, **share, **runtimes)))
        if self.allowed is not None:
            chosen = PodSelector(("default",), None, (Requirement("app", "In", ("a",)),))
            budget = PodDisruptionBudget("uid-budget", "default", "budget", "1", chosen, self.allowed)
            self.cluster.record("budget/default/budget", payloads.PodDisruptionBudgetObserved(budget))
        for number, (held, policy) in enumerate(layout):
            labels = {"host": f"n{number}", "row": f"r{number % 2}"}
            self.cluster.add_node(f"n{number}", *held, policy=policy, labels=labels)

    @property
    def state(self) -> ClusterState:
        return self.cluster.state

    def group(self, count: int, least: int, others: int, spec: dict[str, Any]) -> None:
        """A gang; it starts together with so many of those before it, whether or not those need it as well."""
        self.count += 1
        before = [f"default/g{self.count - number}" for number in range(1, others + 1) if number < self.count]
        spec = {**spec, "labels": {**spec["labels"], **self.queue_labels()}}
        self.cluster.gang(
            f"g{self.count}",
            count,
            least=min(least, count),
            group={"together": tuple(before)},
            created_at=self.count,
            owner=job(self.cluster, f"j{self.count}", spec={"backoffLimit": self.count % 3})
            if self.count % 2
            else OWNER,
            **spec,
        )

    def queue_labels(self) -> dict[str, str]:
        """The labels by which the latest group names its queue: each leaf in turn."""
        names = [name for name in sorted(self.queues) if not any(f"{name}/" in other for other in self.queues)]
        return {KAI_QUEUE_LABEL: names[self.count % len(names)]} if names else {}

    def cycle(self) -> CycleResult:
        before = {key: len(workload.active) for key, workload in self.state.workload_index.workloads.items()}
        held = self.held()
        started = {key: workload.started_at for key, workload in self.state.workload_index.workloads.items()}
        going = sum(one.evicting for one in self.state.workload_index.leaving.values() if one.pod.labels["app"] == "a")
        kept = {uid for uid in self.state.nominated if self.state.pods[uid].nomination is not None}
        result = self.cluster.cycle()
        check_accounts(self.state, brought=set())
        self.no_partial_gang(result, before)
        self.no_gang_left_below_its_minimum(result)
        self.no_queue_beyond_its_limit(held)
        self.no_budget_overdrawn(result, going)
        self.no_pod_starts_before_its_time(result, started)
        self.no_pod_is_moved_too_often_or_in_vain(result, before)
        self.all_fits_once_they_are_gone(kept)
        for decision in result.placements:
            self.cluster.run(self.state.pods[decision.uid].pod)
        return result

    def no_partial_gang(self, result: CycleResult, before: dict[str, int]) -> None:
        for batch in result.batches:
            placed = [one for one in batch.decisions if isinstance(one, payloads.PodPlaced)]
            for key in {self.state.pods[one.uid].group for one in placed}:
                workload = self.state.workload_index.workloads[key]
                assert before[key] or workload.satisfied(workload.counts)

    def no_gang_left_below_its_minimum(self, result: CycleResult) -> None:
        for eviction in result.evictions:
            workload = self.state.workload_index.workloads[eviction.group]
            assert not workload.active or workload.satisfied(workload.counts)
            assert eviction.shrinks or not workload.active
            if eviction.reason != EvictionReason.STALE_GANG and not workload.satisfied(workload.counts):
                needing = self.state.workload_index.needed_by.get(eviction.group, ())
                assert not any(self.state.workload_index.workloads[key].active for key in needing)

    def held(self) -> dict[str, int]:
        """GPUs that each queue's work holds, that of queues below it included."""
        active = [
            (f"{one.group.queue}/", sum(member.requests.get(GPU, 0) for member in one.active.values()))
            for one in self.state.workload_index.workloads.values()
        ]
        return {name: sum(gpus for of, gpus in active if of.startswith(f"{name}/")) for name in self.queues}

    def no_queue_beyond_its_limit(self, before: dict[str, int]) -> None:
        """A pod that is not evicted after all may put a queue beyond it; then a cycle adds nothing."""
        for name, now in self.held().items():
            limit = self.queues[name]["limit"]
            assert limit == UNLIMITED or now <= max(limit, before[name])

    def no_budget_overdrawn(self, result: CycleResult, going: int) -> None:
        if self.allowed is not None:
            evicted = [self.state.pods[one.uid].pod.labels["app"] for one in _for_others(result)]
            assert evicted.count("a") <= max(0, self.allowed - going)

    def no_pod_starts_before_its_time(self, result: CycleResult, started: dict[str, int]) -> None:
        for eviction in _for_others(result):
            if self.queues and eviction.reason != EvictionReason.CONSOLIDATED and not eviction.shrinks:
                assert self.cluster.now - started[eviction.group] >= self.runtime_us

    def no_pod_is_moved_too_often_or_in_vain(self, result: CycleResult, before: dict[str, int]) -> None:
        """Moving is worth it, ends no Job, and leaves who was moved alone for a while."""
        sizes = PodSizes(self.state.columns)
        for batch in result.batches:
            evicted = [one for one in batch.decisions if isinstance(one, payloads.EvictionDecided)]
            nominated = [one for one in batch.decisions if isinstance(one, payloads.PodNominated)]
            moved = [one for one in evicted if one.reason == EvictionReason.CONSOLIDATED]
            whole = {one.group for one in moved if not one.shrinks and before[one.group] > 1}
            cost = sum(sizes.of(self.state.pods[one.uid].requests) * (1 + (one.group in whole)) for one in moved)
            assert not moved or cost < sum(sizes.of(self.state.pods[one.uid].requests) for one in nominated)
            assert all(one.failures_left is None or one.failures_left >= 0 for one in moved)
            for group in {one.group for one in moved}:
                assert self.cluster.now - self.moved.get(group, 0) >= EngineConfig().consolidate_cooldown_us
                self.moved[group] = self.cluster.now

    def all_fits_once_they_are_gone(self, kept: set[str]) -> None:
        """No pod is evicted, and no room is kept, but for what fits when all that leave are gone, whatever else waits.

        Which pods others come to be near, and what they leave of a queue's limit, cannot be promised: where a pod
        counts on that, it has to fit when no other pod waits, and not for longer than until others have been decided
        on. A gang with own pods among those that leave waits for their successors.
        """
        if not self.state.nominated - kept:
            return
        for alone in (False, True):
            then = Workloads()
            then.state, then.now = decode_state(encode_state(self.state)), self.cluster.now
            then.events, then._versions = list(self.cluster.events), dict(self.cluster._versions)
            # Pods of another scheduler are its own to start.
            ours = [uid for uid in then.state.nominated if then.state.pods[uid].pod.scheduler_name == "kai-ledger"]
            nominated = {uid: then.state.pods[uid].pod.rules for uid in ours}
            groups = [then.state.pods[uid].group for uid in nominated]
            for key in groups:
                group = then.state.groups.get(key)
                groups += [other for other in (group.together if group else ()) if other not in groups]
            others = [uid for uid in then.state.waiting if then.state.pods[uid].group not in groups] if alone else []
            for uid in sorted({*then.state.workload_index.leaving, *others}):
                then.delete_pod(then.state.pods[uid].pod)
            short = {uid for uid in nominated if is_short(then.state, uid)}
            result = then.cycle()
            taken = {item.uid for item in result.cleared if item.reason == ClearReason.TAKEN}
            placed = {decision.uid for decision in result.placements}
            for uid in nominated.keys() - taken - placed - short:
                rules = nominated[uid]
                assert not alone or uid in kept
                assert alone or self.queues or (rules is not None and (rules.affinity or rules.spread))

    def come(self, added: list[Any], happened: Sequence[Step] = ()) -> None:
        """Groups come, and a cycle decides; then things happen."""
        for count, least, others, spec in added:
            self.group(count, least, others, spec)
        self.cycle()
        for step in happened:
            self.take(step)

    def take(self, step: Step) -> None:
        getattr(self, "_" + step.what)(step.pick)

    def _picked(self, pick: int, uids: Any) -> Any:
        ordered = sorted(uids)
        return self.state.pods[ordered[pick % len(ordered)]] if ordered else None

    def _go(self, pick: int) -> None:
        for uid in sorted(self.state.workload_index.leaving):
            self.cluster.delete_pod(self.state.pods[uid].pod)

    def _recreate(self, pick: int) -> None:
        """One who leaves is gone and comes back under another name, as its controller makes it."""
        entry = self._picked(pick, self.state.workload_index.leaving)
        if entry is not None:
            self.cluster.delete_pod(entry.pod)
            self.count += 1
            fields = {name: getattr(entry.pod, name) for name in entry.pod.__struct_fields__}
            again = {"uid": f"uid-r{self.count}", "name": f"r{self.count}", "node_name": "", "phase": "Pending"}
            self.cluster.add_pod(type(entry.pod)(**(fields | again)))

    def _fail(self, pick: int) -> None:
        entry = self._picked(pick, [uid for uid, one in self.state.workload_index.leaving.items() if one.evicting])
        if entry is not None:
            failed = payloads.EvictionFailed(entry.pod.uid, "default", entry.pod.name, entry.node, 429, "TooMany")
            self.cluster.record(f"pod/{entry.pod.uid}", failed)

    def _nominate(self, pick: int) -> None:
        """Another scheduler keeps room for a pod of its own or of ours, or no longer."""
        entry = self._picked(pick, self.state.waiting)
        if entry is not None:
            scheduler = ("kai-ledger", "other")[pick % 2]
            node = f"n{pick % (len(self.state.columns.rows) + 1)}"
            self.cluster.see(entry.pod, nominated_node=node if pick % 5 else "", scheduler_name=scheduler)

    def _delete(self, pick: int) -> None:
        entry = self._picked(pick, self.state.pods)
        if entry is not None:
            self.cluster.delete_pod(entry.pod)

    def _time(self, pick: int) -> None:
        self.cluster.now += 30_000_000

    def _restart(self, pick: int) -> None:
        saved = encode_state(self.state)
        self.cluster.state = decode_state(saved)
        assert encode_state(self.state) == saved


def _for_others(result: CycleResult) -> list[payloads.EvictionDecided]:
    """Evictions for another group's sake; a gang that is stale goes for its own."""
    return [eviction for eviction in result.evictions if eviction.preemptor]


@settings(max_examples=examples(25), deadline=None)
@given(nodes, queues, protection, st.lists(rounds, min_size=1, max_size=4))
def test_cycles_break_no_invariant(
    layout: list[Any], queues: dict[str, Any] | None, protection: tuple[int | None, int], happenings: list[Any]
) -> None:
    tell(Story(layout, queues, protection), rounds_of=happenings)


def tell(story: Story, *, rounds_of: list[Any]) -> None:
    """Let things happen until nothing is decided any more; then the log says it all again."""
    for added, happened in rounds_of:
        story.come(added)
        for step in happened:
            story.take(step)
            story.cycle()
    for left in range(50):
        story.take(Step("go"))
        result = story.cycle()
        if not result.batches:
            break
        assert left < 49, "does not come to rest"
    events = story.cluster.events
    assert len({event.id for event in events}) == len(events), "of one pod, a cycle decides one thing once"
    assert encode_state(ClusterState("test").fold_all(events)) == encode_state(story.state)
    assert replayed(events).differences == []
