"""The action Provision: asks an autoscaler for nodes. A ProvisioningRequest is made for each group that neither an
existing node nor an eviction lets start.

Two phases, as in Kueue's ProvisioningRequest admission check (kubernetes-sigs/kueue, pkg/controller/admissionchecks/
provisioning, v0.20.0-devel): the queue lets the group start, then nodes are requested. The group is placed only when
they exist, in the topology that they then form. A failed request is followed by another after a back-off.

A request stands until its group has started, is gone, or needs more than was requested. The request covers the pods
that must start at once. Pods that start one by one have none unless they choose a class: their condition PodScheduled
is enough for an autoscaler.
"""

import re
from collections import Counter
from collections.abc import Sequence
from hashlib import sha256

from kaicore.backoff import backoff
from kaicore.rules.engine.actions.action import CycleAction
from kaicore.rules.engine.decisions import GroupDecision, WithdrawalReason
from kaicore.rules.engine.placement.pod_class import base_key
from kaicore.rules.engine.work.pending_group import PendingGroup
from kaicore.rules.engine.work.provisioning import StandingRequest
from kaicore.rules.engine.work.workload import Member
from kaicore.rules.events.payloads import ProvisioningPodSet, ProvisioningRequested, ProvisioningWithdrawn
from kaicore.rules.events.reasons import making_room
from kaicore.rules.events.reasons.node import NotObservedYet
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.model.replicas import split_shard
from kaicore.rules.objects.provisioning import MOST_POD_SETS, NO_CLASS

#: Reasons that time alone is about to remove: a node may be free, or a pod evicted, in a moment.
_PASSING = (NotObservedYet, making_room.PreemptionDelayNotElapsed)

#: Characters of the group's name that are in a request's; all of that with its digest, and a PodTemplate's number
#: behind it, is a DNS label.
_NAME_LENGTH, _DIGEST_LENGTH = 40, 10


class Provision(CycleAction):
    """Make, make anew and withdraw ProvisioningRequests."""

    def run(self) -> None:
        """See `CycleAction.run`."""
        session = self.session
        standing = session.cycle_input.provisioning
        if not session.config.provisioning.classes and not standing:
            return
        for key in sorted(standing):
            if key not in session.pending_groups and self._is_ours(standing[key]):
                self._withdraw_idle(standing[key])
        for key in sorted(session.pending_groups):
            request = standing.get(key)
            if request is None or self._is_ours(request):
                self._look_after(session.pending_groups[key], request)

    def _is_ours(self, request: StandingRequest) -> bool:
        cycle = self.session.cycle_input.cycle
        return not cycle or split_shard(request.shard)[0] == split_shard(cycle.rpartition("/")[0])[0]

    def _withdraw_idle(self, request: StandingRequest) -> None:
        """Withdraw the request of a group that has no waiting pods."""
        workload = self.session.cycle_input.workloads.get(request.group)
        started = workload is not None and (workload.active or workload.done)
        reason = WithdrawalReason.STARTED if started else WithdrawalReason.GONE
        self.session.record.add([self._withdrawn(request, reason)])

    def _look_after(self, pending_group: PendingGroup, request: StandingRequest | None) -> None:
        """Decide about the request of a group that has waiting pods."""
        session = self.session
        name = pending_group.group.provisioning_class or session.config.provisioning.class_name
        allowed = name in session.config.provisioning.classes
        if not allowed:
            if request is not None:
                session.record.add([self._withdrawn(request, WithdrawalReason.SWITCHED_OFF)])
            if name not in ("", NO_CLASS) and self._needs_nodes(pending_group):
                classes = ", ".join(session.config.provisioning.classes)
                self._tell(
                    pending_group, making_room.ProvisioningClassNotAllowed(provisioning_class=name, allowed=classes)
                )
            return
        if pending_group.assignments or pending_group.nominated or pending_group.deferred:
            return
        if self._has_started(pending_group):
            if request is not None:
                session.record.add([self._withdrawn(request, WithdrawalReason.STARTED)])
            return
        if not self._needs_nodes(pending_group):
            return
        pod_sets = self._pod_sets(pending_group)
        if len(pod_sets) > MOST_POD_SETS:
            problem = f"its pods are of {len(pod_sets)} classes, and a request holds {MOST_POD_SETS}"
            self._tell(pending_group, making_room.ProvisioningImpossible(problem=problem))
        elif request is None:
            self._request(pending_group, name, pod_sets)
        elif request.provisioning_class != name or not _covers(request, pod_sets):
            self._request(pending_group, name, pod_sets, instead_of=request)
        elif request.ended:
            self._again(pending_group, pod_sets, request)
        else:
            self._tell(pending_group, _waits(request))

    def _again(
        self, pending_group: PendingGroup, pod_sets: Sequence[ProvisioningPodSet], ended: StandingRequest
    ) -> None:
        """Make a request anew that came to nothing, when it is time."""
        config, record = self.session.config.provisioning, self.session.record
        retry_at = ended.ended_at + backoff(ended.attempt, first=config.backoff_us, most=config.backoff_max_us)
        if self.session.cycle_input.now >= retry_at:
            self._request(
                pending_group, ended.provisioning_class, pod_sets, instead_of=ended, attempt=ended.attempt + 1
            )
            return
        record.wait_until(retry_at)
        if ended.refused:
            self._tell(pending_group, making_room.ProvisioningImpossible(problem=ended.message, retry_at=retry_at))
            return
        reason = making_room.ProvisioningRetried(
            request=ended.subject,
            attempt=ended.attempt,
            ended=ended.ended,
            message=ended.message,
            retry_at=retry_at,
        )
        self._tell(pending_group, reason)

    def _has_started(self, pending_group: PendingGroup) -> bool:
        """Tell whether what waits of a group is no more than what a gang grows by."""
        workload = pending_group.workload
        return workload.is_gang and workload.satisfied(pending_group.counts)

    def _needs_nodes(self, pending_group: PendingGroup) -> bool:
        """Tell whether a group was tried, and other nodes than there are would let it start."""
        session = self.session
        if not pending_group.workload.is_gang and not pending_group.group.provisioning_class:
            return False
        steps, _ = session.gangs.joint_steps(pending_group)
        if not steps or pending_group.nominated or pending_group.assignments:
            return False
        reasons = list(pending_group.reasons)
        for _, step in steps:
            for key in sorted({session.pods.key_of(member) for member in step.members}):
                reasons += session.class_reasons.get(key, ())
        return bool(reasons) and all(reason.of_nodes and not isinstance(reason, _PASSING) for reason in reasons)

    def _pod_sets(self, pending_group: PendingGroup) -> tuple[ProvisioningPodSet, ...]:
        """Return what a group needs nodes for: what it is to start with, or all pods that wait one by one."""
        members: Sequence[Member] = pending_group.unplaced
        if pending_group.workload.is_gang:
            members = pending_group.step().members
        counts = Counter(self.session.pods.key_of(member) for member in members)
        samples: dict[str, Member] = {}
        for member in sorted(members, key=lambda member: (member.pod.created_at, member.pod.name, member.pod.uid)):
            samples.setdefault(self.session.pods.key_of(member), member)
        return tuple(
            ProvisioningPodSet(pod_class=key, count=counts[key], uid=samples[key].pod.uid, pod=samples[key].pod.name)
            for key in sorted(counts)
        )

    def _request(
        self,
        pending_group: PendingGroup,
        provisioning_class: str,
        pod_sets: Sequence[ProvisioningPodSet],
        *,
        instead_of: StandingRequest | None = None,
        attempt: int = 1,
    ) -> None:
        session, group = self.session, pending_group.group
        decision = ProvisioningRequested(
            group=group.key,
            namespace=group.namespace,
            name=_name(group.name, session.cycle_input.cycle, group.key, *(pod_set.uid for pod_set in pod_sets)),
            cycle=session.cycle_input.cycle,
            provisioning_class=provisioning_class,
            attempt=attempt,
            pod_sets=tuple(pod_sets),
            parameters=session.config.provisioning.parameters,
        )
        decisions: list[GroupDecision] = [decision]
        if instead_of is not None and not instead_of.refused:
            why = WithdrawalReason.RETRIED if attempt > 1 else WithdrawalReason.CHANGED
            decisions.insert(0, self._withdrawn(instead_of, why))
        session.record.add(decisions)
        reason = making_room.WaitsForProvisioning(
            request=f"{decision.namespace}/{decision.name}",
            provisioning_class=provisioning_class,
            pods=sum(pod_set.count for pod_set in pod_sets),
            stage="requested",
            since=session.cycle_input.now,
        )
        self._tell(pending_group, reason)

    def _withdrawn(self, request: StandingRequest, reason: WithdrawalReason) -> ProvisioningWithdrawn:
        return ProvisioningWithdrawn(
            group=request.group,
            namespace=request.namespace,
            name=request.name,
            cycle=self.session.cycle_input.cycle,
            reason=reason,
            pod_sets=len(request.pod_sets),
        )

    def _tell(self, pending_group: PendingGroup, reason: Reason) -> None:
        pending_group.reasons = (reason, *pending_group.reasons)


def _covers(request: StandingRequest, pod_sets: Sequence[ProvisioningPodSet]) -> bool:
    """Tell whether a request asks for all that is needed; a class counts whatever nodes it is for at the time."""
    asked: Counter[str] = Counter()
    for pod_set in request.pod_sets:
        asked[base_key(pod_set.pod_class)] += pod_set.count
    for pod_set in pod_sets:
        asked[base_key(pod_set.pod_class)] -= pod_set.count
    return all(left >= 0 for left in asked.values())


def _waits(request: StandingRequest) -> Reason:
    return making_room.WaitsForProvisioning(
        request=request.subject,
        provisioning_class=request.provisioning_class,
        pods=request.pods,
        stage=request.stage,
        message=request.message,
        since=request.decided_at,
    )


def _name(group: str, *parts: str) -> str:
    """Return a name that no other request has: of the group as far as it goes, and a digest of the rest."""
    legible = re.sub(r"[^a-z0-9]+", "-", group.lower())[:_NAME_LENGTH].strip("-")
    digest = sha256("\n".join(parts).encode()).hexdigest()[:_DIGEST_LENGTH]
    return "-".join(part for part in ("kai", legible, digest) if part)
