"""What a shadow decided about a pod of another scheduler, for people."""

from kaicore.rules.engine.explain.waiting_reasons import SingleStartKind, reasons_in_short, waiting_reasons
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.pod_entry import PodEntry, Stage
from kaicore.rules.state.shadow import shadow_shard
from kaicore.rules.state.why import zones_text


def shadow_notes(entry: PodEntry, state: ClusterState) -> list[str]:
    """Say where a shadow would put a pod that waits, or would have put one that has a node; empty without a shadow."""
    book, waits = state.shadows, entry.stage is Stage.WAITING
    choice = book.choices.get(entry.pod.uid)
    if choice is not None:
        would = "would" if waits else "would have"
        did = "keep room for it" if choice.kept and waits else "kept room for it" if choice.kept else "put it"
        return [f"a shadow {would} {did} on {choice.node}{zones_text(choice.placement)} (cycle {choice.cycle})"]
    if not waits:
        return []
    shard = shadow_shard(entry.pod.scheduler_name)
    workload = state.workload_index.workloads.get(entry.group)
    alone = None
    if workload is not None and not workload.is_gang:
        alone = SingleStartKind(workload.group.queue, workload.group.priority)
    by_group = book.reasons.by_group.get(entry.group, {}).get(shard)
    by_class = book.reasons.by_class.get(state.class_of(entry).key, {}).get(shard)
    if by_group is None and by_class is None:
        return []
    reasons = waiting_reasons(
        {} if by_group is None else {shard: by_group}, {} if by_class is None else {shard: by_class}, alone=alone
    )
    return [f"a shadow would let it wait: {reasons_in_short(reasons)}"]
