"""Notes for people about a shadow's decision on a pod of another scheduler."""

from kaicore.rules.deciding.shadow import shadow_shard
from kaicore.rules.deciding.why import zones_text
from kaicore.rules.engine.explain.waiting_reasons import SingleStartKind, reasons_in_short, waiting_reasons
from kaicore.rules.reasons.reason import Reason
from kaicore.rules.state.pod_entry import PodEntry, Stage
from kaicore.rules.state.views import WorkView


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


def shadow_reasons(entry: PodEntry, state: WorkView) -> list[Reason]:
    """Return why a shadow would let a pod wait, as it recorded last; empty where the pod does not wait."""
    if entry.stage is not Stage.WAITING or entry.pod.uid in state.shadows.choices:
        return []
    shard = shadow_shard(entry.pod.scheduler_name)
    workload = state.workload_index.workloads.get(entry.group)
    alone = None
    if workload is not None and not workload.is_gang:
        alone = SingleStartKind(workload.group.queue, workload.group.priority)
    by_group = state.shadows.reasons.by_group.get(entry.group, {}).get(shard)
    by_class = state.shadows.reasons.by_class.get(state.class_of(entry).key, {}).get(shard)
    return waiting_reasons(
        {} if by_group is None else {shard: by_group}, {} if by_class is None else {shard: by_class}, alone=alone
    )
