"""Why a pod was not placed: codes with fields, rendered only when somebody asks."""

from enum import StrEnum

import numpy as np

from kaicore.rules.groups.problems import render_problem
from kaicore.rules.model.quantity import format_amount
from kaicore.rules.numa.explain import NumaRefusal
from kaicore.rules.queues.refusals import render_refusal
from kaicore.rules.reasons.reason import Reason


class Code(StrEnum):
    """Reasons besides those of the NUMA rules (`kaicore.rules.numa.explain.NumaRefusal`)."""

    SCHEDULING_GATED = "SchedulingGated"
    UNSUPPORTED = "Unsupported"
    MALFORMED = "Malformed"
    NO_NODES = "NoNodes"
    NODE_NOT_READY = "NodeNotReady"
    NODE_UNSCHEDULABLE = "NodeUnschedulable"
    NODE_SELECTOR = "NodeSelectorMismatch"
    NODE_AFFINITY = "NodeAffinityMismatch"
    NODE_FLAVOR = "NodeFlavorMismatch"
    FLAVOR_UNKNOWN = "FlavorNotFound"
    UNTOLERATED_TAINT = "UntoleratedTaint"
    REJECTED_HERE = "RejectedByKubelet"
    HISTORY_INCOMPLETE = "HistoryIncomplete"
    NOT_OBSERVED_YET = "NotObservedYet"
    INSUFFICIENT = "InsufficientResource"
    TOO_SMALL = "NodeTooSmall"
    OWN_POLICY_UNTOLD = "NumaPolicyUntold"
    OWN_POLICY_NEVER = "NumaPolicyNeverKept"
    OWN_POLICY_NOW = "NumaPolicyNotKept"
    TOPOLOGY_LABEL = "NoTopologyLabel"
    TOPOLOGY_SPREAD = "TopologySpread"
    POD_AFFINITY = "PodAffinity"
    POD_ANTI_AFFINITY = "PodAntiAffinity"
    KEPT_OUT = "AntiAffinityOfOthers"
    HOST_PORT = "HostPortTaken"
    VOLUME_NODE = "VolumeOutOfReach"
    NO_VOLUME = "NoVolumeLeft"
    VOLUME_IN_USE = "VolumeInUse"
    VOLUME_NOT_READY = "VolumeNotReady"
    GANG_INCOMPLETE = "GangIncomplete"
    GANG_SHORT = "GangDoesNotFit"
    GANG_GROUP = "GangGroupWaits"
    BIND_BACKOFF = "WaitsAfterFailedBinds"
    WAITS_FOR_VICTIMS = "WaitsForVictims"
    NEVER_PREEMPTS = "NeverPreempts"
    PREEMPTION_DELAY = "PreemptionDelayNotElapsed"
    NO_VICTIMS = "NoVictimsWouldHelp"
    DISRUPTION_BUDGET = "ProtectedByDisruptionBudget"
    DISRUPTION_BUDGETS = "UnderSeveralDisruptionBudgets"
    MINIMUM_RUNTIME = "WithinMinimumRuntime"
    SEARCH_ENDED = "VictimSearchEnded"
    NO_MOVE = "NoMoveWouldHelp"
    NOBODY_REMAKES = "PodsWithoutController"
    CANNOT_RESTART = "GroupsThatCannotRestart"
    MOVED_LATELY = "MovedLately"
    NO_OTHER_PLACE = "NoOtherPlaceForThem"
    TOO_MANY_MOVES = "TooManyToMove"
    NOT_WORTH_MOVING = "NotWorthMoving"
    JOB_WOULD_FAIL = "JobWouldFail"
    FITS_IF = "FitsIf"
    FITS_AFTER = "FitsAfter"


def render(reason: Reason) -> str:
    """Say a reason in words, for an operator."""
    verdict = f": {reason.rejection}" if reason.rejection else ""
    where = f" (such as {reason.example}{verdict})" if reason.example else ""
    nodes = f"{reason.nodes} node{'' if reason.nodes == 1 else 's'}"
    need = format_amount(reason.resource, reason.need)
    free = format_amount(reason.resource, reason.free)
    most = f"at most {free}" if reason.nodes > 1 and reason.free else free
    at_zone = f" on zone {reason.zone}" if reason.zone else ""
    match reason.code:
        case Code.SCHEDULING_GATED:
            return f"held back by scheduling gates: {reason.detail}"
        case Code.UNSUPPORTED:
            whose = f" of {reason.group}" if reason.group else ""
            return f"waits, for kai-ledger cannot honour yet: {reason.detail}{whose}"
        case Code.MALFORMED:
            return f"waits, for what it asks for makes no sense: {reason.detail}"
        case Code.NO_NODES:
            return "the cluster has no nodes"
        case Code.NODE_NOT_READY:
            return f"{nodes} not ready{where}"
        case Code.NODE_UNSCHEDULABLE:
            return f"{nodes} cordoned{where}"
        case Code.NODE_SELECTOR:
            return f"{nodes} without the labels of the pod's node selector{where}"
        case Code.NODE_AFFINITY:
            return f"{nodes} outside the pod's required node affinity{where}"
        case Code.NODE_FLAVOR:
            return f"{nodes} not of the flavors of its queue {reason.detail}{where}"
        case Code.FLAVOR_UNKNOWN:
            return f"waits, for its queue names a flavor that does not exist: {reason.detail}"
        case Code.UNTOLERATED_TAINT:
            return f"{nodes} with the untolerated taint {reason.detail}{where}"
        case Code.REJECTED_HERE:
            return f"{nodes} whose kubelet rejected such a pod ({reason.detail}) and where nothing changed since{where}"
        case Code.HISTORY_INCOMPLETE:
            return f"{nodes} where it is not known what some pods hold: {reason.detail}{where}"
        case Code.NOT_OBSERVED_YET:
            return f"{nodes} that may refuse the pod, by what pods there hold that are just starting or ending{where}"
        case Code.TOO_SMALL:
            return f"{nodes} too small: {reason.resource}: {need} needed, {most} in all{where}"
        case Code.INSUFFICIENT:
            more = f", {reason.detail}" if reason.detail else ""
            return f"{nodes} short of {reason.resource}: {need} needed, {most} free{more}{where}"
        case Code.OWN_POLICY_UNTOLD:
            told = reason.resource or "what is asked for"
            return f"{nodes} that do not tell {told} by zone, as the pod's own policy needs ({reason.detail}){where}"
        case Code.OWN_POLICY_NEVER:
            return f"{nodes} that could never keep the pod's own policy ({reason.detail}){where}"
        case Code.OWN_POLICY_NOW:
            return f"{nodes} that would not keep the pod's own policy now ({reason.detail}){where}"
        case Code.TOPOLOGY_LABEL:
            return f"{nodes} without the topology label {reason.detail}{where}"
        case Code.TOPOLOGY_SPREAD:
            return (
                f"{nodes} where pods would not be spread by {reason.detail}: skew {reason.free} with it, "
                f"{reason.need} allowed{where}"
            )
        case Code.POD_AFFINITY:
            return f"{nodes} away from the pods that it has to be with, by {reason.detail}{where}"
        case Code.POD_ANTI_AFFINITY:
            return f"{nodes} with pods that it must not be with, by {reason.detail}{where}"
        case Code.KEPT_OUT:
            return f"{nodes} with pods that must not be with it, by {reason.detail}{where}"
        case Code.HOST_PORT:
            return f"{nodes} where host port {reason.detail} is taken{where}"
        case Code.VOLUME_NODE:
            return f"{nodes} that its volumes cannot be used on: {reason.detail}{where}"
        case Code.NO_VOLUME:
            return f"{nodes} for which no volume of storage class {reason.detail} is left that would do{where}"
        case Code.VOLUME_IN_USE:
            return f"claim {reason.detail} is in use by another pod, and may be by one only"
        case Code.VOLUME_NOT_READY:
            return f"waits for its volumes: {reason.detail}"
        case Code.GANG_INCOMPLETE:
            return f"the group needs {reason.need} pods to start, {reason.free} of them are there to be placed"
        case Code.GANG_SHORT:
            return f"of the {reason.need} pods that must start together only {reason.free} fit"
        case Code.GANG_GROUP:
            return f"must start together with {reason.detail}"
        case Code.BIND_BACKOFF:
            return f"{reason.need} of its pods wait after failed binds"
        case Code.WAITS_FOR_VICTIMS:
            return f"room is kept for {reason.need} of its pods until those who hold it are gone{where}"
        case Code.NEVER_PREEMPTS:
            return "its pods' preemption policy is Never"
        case Code.PREEMPTION_DELAY:
            return f"may have others evicted from {_time(reason.until)} on"
        case Code.NO_VICTIMS:
            return f"{reason.detail}: evicting what may be evicted would not make it fit"
        case Code.DISRUPTION_BUDGET:
            pods = f"{reason.need} pod{'' if reason.need == 1 else 's'} that could make way"
            allowed = f"{reason.free} disruption{'' if reason.free == 1 else 's'}"
            return f"PodDisruptionBudget {reason.detail} protects {pods}: it allows {allowed} now"
        case Code.DISRUPTION_BUDGETS:
            pods = f"{reason.need} pod{'' if reason.need == 1 else 's'} that could make way"
            return f"no pod under several PodDisruptionBudgets can be evicted: {pods}, by {reason.detail}"
        case Code.MINIMUM_RUNTIME if reason.need == 1:
            return f"a pod that could make way has a minimum runtime until {_time(reason.until)}"
        case Code.MINIMUM_RUNTIME:
            return (
                f"{reason.need} pods that could make way have a minimum runtime, the first until {_time(reason.until)}"
            )
        case Code.SEARCH_ENDED:
            return "the search for victims was ended for this cycle"
        case Code.NO_MOVE:
            return "nothing was moved for it: moving what may be moved would not make it fit"
        case Code.NOBODY_REMAKES:
            return f"pods without a controller, which nobody makes again, are not moved{where}"
        case Code.CANNOT_RESTART:
            return f"pods of groups that would not be let start again are not moved{where}"
        case Code.MOVED_LATELY:
            return f"pods that were moved lately stay for now, the first until {_time(reason.until)}{where}"
        case Code.NO_OTHER_PLACE:
            return f"nothing was moved for it: {_groups(reason.need)} in the way fit nowhere else{where}"
        case Code.JOB_WOULD_FAIL:
            return (
                f"{_groups(reason.need)} stay, for their Jobs count evictions as failures and bear no more{where}: "
                "a podFailurePolicy that ignores DisruptionTarget would let them be moved"
            )
        case Code.TOO_MANY_MOVES:
            return f"nothing was moved for it: {_groups(reason.need)} would have to be, {reason.free} may be"
        case Code.NOT_WORTH_MOVING:
            return (
                "nothing was moved for it: that would cost as much as "
                f"{_percent(reason.need)} of the largest node, and gain {_percent(reason.free)}"
            )
        case Code.FITS_IF:
            return f"fits if {reason.resource} ≤ {need}{f' {reason.detail}' if reason.detail else ''}{where}"
        case Code.FITS_AFTER if not reason.detail:
            return f"fits when what is leaving is gone{where}"
        case Code.FITS_AFTER:
            held = f"its {reason.need} pods, such as " if reason.need > 1 else ""
            return f"fits after {reason.detail} ends ({held}on {reason.example})"
        case NumaRefusal.NEVER_FITS:
            if not reason.zone:
                return f"{nodes} can never align it: {reason.detail}{where}"
            return (
                f"{nodes} can never align it: {reason.resource}: {need} needed, "
                f"{free} in the largest zone ({reason.zone}){where}"
            )
        case NumaRefusal.WIDTHS_DIFFER:
            return f"{nodes} can never align it: restricted wants {reason.detail}{where}"
        case NumaRefusal.ZONE_SHORT:
            return f"{nodes} with no zone that fits: {reason.resource}: {need} needed, {free} free{at_zone}{where}"
        case NumaRefusal.ZONES_APART | NumaRefusal.MEMORY_GROUPS:
            return f"{nodes} cannot align it now: {reason.resource}: {reason.detail}{where}"
        case NumaRefusal.WHOLE_CORES:
            return f"{nodes} that give CPUs by whole cores only: {reason.detail}{where}"
        case _:
            said = render_refusal(reason) or render_problem(reason)
            if said is not None:
                return said
            return f"{reason.code}: {reason.detail or reason.resource}{where}"


def _groups(count: int) -> str:
    return f"{count} group{'' if count == 1 else 's'}"


def _percent(parts: int) -> str:
    """Write ten-thousandths, rounded up to whole hundredths."""
    return f"{-(-parts // 100)} %"


def _time(at: int) -> str:
    """Write a time, given in microseconds since the epoch, as Kubernetes does, to the second that is over by then."""
    return f"{np.datetime64(-(-at // 1_000_000), 's')}Z"


#: Reasons that no pod's end can remove: the pod waits for the cluster or itself to be changed.
UNRESOLVABLE = frozenset(
    {
        Code.SCHEDULING_GATED,
        Code.UNSUPPORTED,
        Code.MALFORMED,
        Code.OWN_POLICY_UNTOLD,
        Code.OWN_POLICY_NEVER,
        Code.NO_NODES,
        Code.NODE_SELECTOR,
        Code.NODE_AFFINITY,
        Code.NODE_FLAVOR,
        Code.FLAVOR_UNKNOWN,
        Code.UNTOLERATED_TAINT,
        Code.TOO_SMALL,
        Code.TOPOLOGY_LABEL,
        Code.NO_VOLUME,
        Code.VOLUME_NOT_READY,
        NumaRefusal.NEVER_FITS,
        NumaRefusal.WIDTHS_DIFFER,
    }
)
