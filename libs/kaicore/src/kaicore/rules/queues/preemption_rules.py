"""Rules of preemption: which work may be evicted for other work, besides what queues' own settings let go.

They are those of Kueue's PreemptionConfigs, which ClusterQueues name. The labels of work are those of its oldest pod
here, and not of Kueue's Workload.

Source: Kueue 0.20 (alpha, ConfigurablePreemptions), KEP-13396, `apis/kueue/v1alpha1/preemptionconfig_types.go` and
`pkg/scheduler/preemption/config`.
"""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kaicore.rules.model import queue as models
from kaicore.rules.model.selector import meets
from kaicore.rules.objects.wire import number_in
from kaicore.rules.queues.tree import QueueTree

ALWAYS, QUOTA, TOPOLOGY = TRIGGERS = ("Always", "InsufficientQuota", "QuotaFeasibleAndInsufficientTopology")

LOCAL_QUEUE, CLUSTER_QUEUE, COHORT, COHORT_TREE, ANY = SCOPES = (
    "WithinLocalQueue",
    "WithinClusterQueue",
    "WithinParentCohort",
    "WithinCohortTree",
    "AnyClusterQueue",
)

#: The label of Kueue that names work's priority class; of work without it, rules see its pods' PriorityClass there.
PRIORITY_CLASS_LABEL = "kueue.x-k8s.io/priority-class"

#: Comparisons of evictable work with the work that needs room.
COMPARISONS = {
    "LessThan": operator.lt,
    "GreaterThan": operator.gt,
    "LessThanOrEqual": operator.le,
    "GreaterThanOrEqual": operator.ge,
}

#: Of labels with a number.
_MOST_DIGITS = 10


@dataclass(frozen=True, slots=True)
class RuledWork:
    """Work as rules see it.

    Attributes:
        queue: its number.
        named: what it names as its queue.
        labels: of its oldest pod.
    """

    queue: int
    named: str
    priority: int
    labels: Mapping[str, str]


def ruling(preemptor: RuledWork, victim: RuledWork, tree: QueueTree, triggers: Sequence[str]) -> str:
    """Name the rules that let work be evicted for other work, as `EvictionDecided` has them; empty for none.

    Args:
        triggers: of the rules that count, in order; named are rules of the first one by which any does.
    """
    rules = tree.rules_of(preemptor.queue)
    for trigger in triggers:
        names = [
            f"{rule.name}/{','.join(map(str, selectors))}"
            for rule in rules
            if rule.trigger == trigger and (selectors := _selecting(rule, preemptor, victim, tree))
        ]
        if names:
            config = tree.queues[preemptor.queue].rules_in.removeprefix(models.PREEMPTION_CONFIG_PREFIX)
            return f"{config} rule {'; '.join(names)}"
    return ""


def _selecting(rule: models.PreemptionRule, preemptor: RuledWork, victim: RuledWork, tree: QueueTree) -> list[int]:
    if rule.unsupported or not meets(preemptor.labels, rule.labels):
        return []
    return [place for place, one in enumerate(rule.selectors) if _selects(one, preemptor, victim, tree)]


def _selects(selector: models.VictimSelector, preemptor: RuledWork, victim: RuledWork, tree: QueueTree) -> bool:
    if not _in_scope(selector.scope, preemptor, victim, tree):
        return False
    if selector.comparison and not COMPARISONS[selector.comparison](victim.priority, preemptor.priority):
        return False
    if not (meets(victim.labels, selector.labels) and meets(tree.queues[victim.queue].labels, selector.queue_labels)):
        return False
    return all(_number_holds(rule, preemptor, victim) for rule in selector.numbers)


def _in_scope(scope: str, preemptor: RuledWork, victim: RuledWork, tree: QueueTree) -> bool:
    mine, theirs = preemptor.queue, victim.queue
    if scope == LOCAL_QUEUE:
        return mine == theirs and preemptor.named == victim.named
    if mine == theirs or not tree.queues[theirs].name.startswith(models.CLUSTER_QUEUE_PREFIX):
        return mine == theirs
    if scope == COHORT:
        return tree.parents[mine] == tree.parents[theirs] >= 0
    return scope == ANY or (scope == COHORT_TREE and tree.paths[mine][-1] == tree.paths[theirs][-1])


def _number_holds(rule: models.NumberRule, preemptor: RuledWork, victim: RuledWork) -> bool:
    texts = (work.labels.get(rule.label, "") for work in (victim, preemptor))
    said = (number_in(text, digits=_MOST_DIGITS) for text in texts)
    number, own = (rule.missing if one is None else one for one in said)
    if number is None or (rule.comparison and own is None):
        return False
    if rule.comparison and own is not None and not COMPARISONS[rule.comparison](number, own):
        return False
    return (rule.least is None or number >= rule.least) and (rule.most is None or number <= rule.most)
