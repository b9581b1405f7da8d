"""A shadow's cycle: the nodes that the waiting pods of another scheduler would get, and the changes since the last
cycle.

The cycle is the same as a scheduler's (`kaicore.rules.engine.actions.cycle`), on the same state, with the pods of the
other scheduler treated as its own. It begins with the real state, so the shadow's own decisions charge nothing. All
waiting pods are decided on anew each time, and only results that differ from the last cycle are recorded.

A note tells people a shadow's decision on a pod.
"""

import msgspec

from kaicore.rules.deciding.cycle_run import run_on
from kaicore.rules.deciding.decide import class_news, group_news
from kaicore.rules.deciding.why import zones_text
from kaicore.rules.engine.config import ENGINE_VERSION, Backfill, EngineConfig
from kaicore.rules.engine.explain.waiting_reasons import reasons_in_short, single_start_kind, waiting_reasons
from kaicore.rules.engine.policies.book import NO_POLICIES, PolicyBook
from kaicore.rules.engine.work.provisioning import ProvisioningConfig
from kaicore.rules.events.payloads import ShadowDecided
from kaicore.rules.events.reasons.base import CodedReason
from kaicore.rules.state.pods.pod_entry import PodEntry, Stage
from kaicore.rules.state.views import CycleView, WorkView

#: Most places in one event: such an event stays below the largest message of a bus, 1 MiB.
_MOST = 1000


def shadow_shard(scheduler: str) -> str:
    """Return the name under which the decisions about a scheduler's pods are recorded; also their stream."""
    return f"shadow/{scheduler}"


def shadow_config(config: EngineConfig, scheduler: str) -> EngineConfig:
    """Return the settings of a shadow: a shard's, for the pods of another scheduler.

    It asks for no nodes, and reserves no start: the other scheduler would not keep it.
    """
    off = {"repair": False, "provisioning": ProvisioningConfig(), "backfill": Backfill.OFF}
    return msgspec.structs.replace(config, scheduler_name=scheduler, **off)


def decide_in_shadow(
    state: CycleView, config: EngineConfig, *, now: int, policies: PolicyBook = NO_POLICIES
) -> ShadowDecided | None:
    """Run a shadow's cycle.

    Args:
        state: folded up to the position on which is decided; not changed.
        config: see `shadow_config`.
        now: the cycle's clock, microseconds since the epoch.
        policies: see `run_on`.

    Returns:
        What is to be recorded; None where nothing came out otherwise than was recorded last.
    """
    shard, book = shadow_shard(config.scheduler_name), state.shadows
    cycle = f"{shard}/{state.position}"
    run = run_on(state, config, now=now, cycle=cycle, policies=policies)
    result = run.result
    placed = [one for one in result.placements if book.is_news(one)]
    nominated = [one for one in result.nominations if book.is_news(one)]
    chosen = {*(one.uid for one in result.placements), *(one.uid for one in result.nominations)}
    waiting = (uid for uid in state.waiting if state.pods[uid].pod.scheduler_name == config.scheduler_name)
    left = tuple(sorted(uid for uid in waiting if uid in book.choices and uid not in chosen))
    pending = class_news(book.reasons, shard, result.pending)
    groups = group_news(book.reasons, shard, result.groups)
    evicted = tuple(sorted(one.uid for one in result.evictions))
    if not (placed or nominated or left or pending or groups) and evicted == book.evicted.get(shard, ()):
        return None
    digest = config.digest()
    return ShadowDecided(
        shard=shard,
        scheduler=config.scheduler_name,
        cycle=cycle,
        input_position=state.position,
        config_digest=digest,
        config=None if digest in state.configs else config.document(),
        engine_version=ENGINE_VERSION,
        now=now,
        pods=run.given.waiting,
        placed=tuple(placed[:_MOST]),
        nominated=tuple(nominated[:_MOST]),
        left=left,
        evicted=result.evictions[:_MOST],
        pending=pending,
        groups=groups,
        more=len(placed) > _MOST or len(nominated) > _MOST,
    )


def shadow_notes(entry: PodEntry, state: WorkView) -> list[str]:
    """Say where a shadow would put a pod that waits, or would have put one that has a node; empty without a shadow."""
    book, waits = state.shadows, entry.stage is Stage.WAITING
    choice = book.choices.get(entry.pod.uid)
    if choice is not None:
        would = "would" if waits else "would have"
        did = "keep room for it" if choice.kept and waits else "kept room for it" if choice.kept else "put it"
        return [f"a shadow {would} {did} on {choice.node}{zones_text(choice.placement)} (cycle {choice.cycle})"]
    reasons = shadow_reasons(entry, state)
    return [f"a shadow would let it wait: {reasons_in_short(reasons)}"] if reasons else []


def shadow_reasons(entry: PodEntry, state: WorkView) -> list[CodedReason]:
    """Return why a shadow would let a pod wait, as it recorded last; empty where the pod does not wait."""
    if entry.stage is not Stage.WAITING or entry.pod.uid in state.shadows.choices:
        return []
    shard = shadow_shard(entry.pod.scheduler_name)
    alone = single_start_kind(state.workload_index.workloads.get(entry.group))
    by_group = state.shadows.reasons.by_group.get(entry.group, {}).get(shard)
    by_class = state.shadows.reasons.by_class.get(state.class_of(entry).key, {}).get(shard)
    return waiting_reasons(
        {} if by_group is None else {shard: by_group}, {} if by_class is None else {shard: by_class}, alone=alone
    )
