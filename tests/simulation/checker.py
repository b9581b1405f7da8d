"""The invariants after every event and every write, worked out again from the events and objects alone.

Nothing here is the product's: events are read as plain JSON, amounts are summed anew. What the checker holds against
the code it says in `violations`, with the time.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from kaicore.rules.events.envelope import Event, Unit, UnitOutcome
from kaicore.rules.events.payloads import CycleCompleted

from tests.simulation.amounts import requested, requests_of, zones_of
from tests.simulation.plan import LIMITS
from tests.simulation.shares import GROUP, NAMESPACE, Shares

Json = dict[str, Any]

_GPU = "nvidia.com/gpu"
_OVER = ("Succeeded", "Failed")


@dataclass(slots=True)
class LoggedPod:
    """A pod as the log's events tell of it.

    Attributes:
        node: where it was placed or seen; empty while it waits.
        bound: whether the log says that it is bound.
        outcome: whether the decision has its outcome.
        zones: what it holds of zones: zone and resource to amount.
        over: whether it has ended, or is gone.
        leaving: whether it is to go: queues do not count it any more, nodes do.
        deleting: whether the API server deletes it, which no failed eviction takes back.
        milli: thousandths of GPUs that it has parts of.
    """

    uid: str
    name: str = ""
    queue: str = ""
    gang: str = ""
    requests: Json = field(default_factory=dict)
    node: str = ""
    bound: bool = False
    outcome: bool = False
    zones: dict[tuple[str, str], int] = field(default_factory=dict)
    over: bool = False
    leaving: bool = False
    deleting: bool = False
    succeeded: bool = False
    phase: str = ""
    milli: int = 0


@dataclass(slots=True)
class ApiPod:
    uid: str
    name: str
    node: str
    phase: str
    deleting: bool
    requests: dict[str, int]
    reservation: bool = False


class Checker:
    def __init__(self, *, gangs: dict[str, int]) -> None:
        """`gangs` has the minimum of every gang by name; it grows as they come."""
        self.violations: list[str] = []
        self.now = 0.0
        self.pods: dict[str, LoggedPod] = {}
        self.api_pods: dict[str, ApiPod] = {}
        self.allocatable: dict[str, dict[str, int]] = {}
        #: Node, zone and resource to amount.
        self.zones: dict[tuple[str, str, str], int] = {}
        self.events: list[Event] = []
        #: Pods that were bound although the log had given them back: their request was late on its way.
        self.late: set[str] = set()
        self.counts: dict[str, int] = defaultdict(int)
        self.shares = Shares(self.wrong)
        self._gangs = gangs
        self._versions: dict[str, int] = {}
        self._watchers: list[tuple[int, str]] = []
        self._shard_of: dict[str, str] = {}
        #: By shard, the replicas that the log lists.
        self._replicas: dict[str, list[str]] = {}
        #: By process, the last known position of a cycle of its own.
        self._told: dict[str, int] = {}
        self._looks: dict[str, Callable[[Event, Json], None]] = {
            "WatcherStarted": self._watcher_started,
            "CycleCompleted": self._cycle_completed,
            "ReplicasChanged": self._replicas_changed,
            "NodeObserved": self._node_observed,
            "TopologyObserved": self._topology_observed,
            "PodObserved": self._pod_observed,
            "PodDeleted": self._pod_deleted,
            "PodRejected": self._pod_deleted,
            "EvictionDecided": self._eviction_decided,
            "RepairRequested": self._eviction_decided,
            "EvictionFailed": self._eviction_failed,
            "PodPlaced": self._pod_placed,
            "PodBound": self._pod_bound,
            "BindFailed": self._bind_failed,
            "PlacementObserved": self._placement_observed,
            "GpuOpened": self._gpu_opened,
            "GpuClosed": self._gpu_closed,
        }

    def wrong(self, what: str) -> None:
        """Hold something against the code."""
        self.violations.append(f"{self.now:.3f} s: {what}")

    # --- the log ----------------------------------------------------------------------------------------------------

    def appended(self, events: Sequence[Event]) -> None:
        """Look at events that the log has taken in one append."""
        placed: dict[str, None] = {}
        for event in events:
            if event.position != len(self.events) + 1:
                self.wrong(f"event {event.position} follows event {len(self.events)}")
            if event.version != self._versions.get(event.stream, 0) + 1:
                self.wrong(f"event {event.position}: version {event.version} of {event.stream} is not the next one")
            self._versions[event.stream] = event.version
            self.events.append(event)
            self.counts[event.type] += 1
            body = msgspec.json.decode(event.body)
            look = self._looks.get(event.type)
            if look is not None:
                look(event, body)
            if event.type == "PodPlaced" and (gang := self.pods[body["uid"]].gang):
                placed[gang] = None
        for gang in placed:
            self._check_gang(gang)

    def taken(self, expectations: Sequence[Mapping[str, int]], position: int) -> None:
        """Look at what an append expected of streams, as the log takes it: nobody decides on what is so no more."""
        for expect in expectations:
            for stream, version in expect.items():
                if version != self._versions.get(stream, 0):
                    self.wrong(
                        f"the log takes after event {position} what holds of version {version} of {stream}, which is at"
                        f" {self._versions.get(stream, 0)}"
                    )

    def proposing(self, process: str, units: Sequence[Unit]) -> None:
        """Look at what a process is about to append: nobody decides without its own known decisions."""
        for new in (new for unit in units for new in unit.events):
            if isinstance(new.payload, CycleCompleted) and new.payload.input_position < self._told.get(process, 0):
                self.wrong(
                    f"{process} decides {new.payload.cycle} on position {new.payload.input_position}, although it was"
                    f" answered with its decisions up to {self._told[process]}"
                )

    def acknowledged(self, process: str, units: Sequence[Unit], outcomes: Sequence[UnitOutcome]) -> None:
        """Look at the answer to a process's append."""
        if any(isinstance(new.payload, CycleCompleted) for unit in units for new in unit.events):
            shown = [position for outcome in outcomes for position in outcome.positions]
            self._told[process] = max(shown, default=self._told.get(process, 0))
        for unit, outcome in zip(units, outcomes, strict=True):
            if outcome.stale is not None:
                self.counts["stale"] += 1
                continue
            for new, position in zip(unit.events, outcome.positions, strict=True):
                if position > len(self.events) or self.events[position - 1].id != new.id:
                    self.wrong(f"{process} got the answer that {new.id} is event {position}, which it is not")
                elif process.startswith("watcher") and not outcome.duplicate and new.stream != "watcher":
                    self._check_watcher(process, position)

    def _check_watcher(self, process: str, position: int) -> None:
        newest = [instance for at, instance in self._watchers if at < position]
        if newest and newest[-1] != process:
            self.wrong(f"event {position} is {process}'s, although {newest[-1]} has claimed the cluster before")

    def _pod(self, uid: str) -> LoggedPod:
        return self.pods.setdefault(uid, LoggedPod(uid))

    def _watcher_started(self, event: Event, body: Json) -> None:
        self._watchers.append((event.position, body["instance"]))

    def _cycle_completed(self, event: Event, body: Json) -> None:
        if body["cycle"] != f"{body['shard']}/{event.version}":
            self.wrong(f"event {event.position}: cycle {body['cycle']} is number {event.version} of its shard")
        shard, _, replica = body["shard"].partition("/")
        listed = self._replicas.get(shard) or [""]
        if replica not in listed:
            self.wrong(f"event {event.position}: cycle {body['cycle']} is of no replica that is listed: {listed}")

    def _replicas_changed(self, event: Event, body: Json) -> None:
        """From here on groups may have other owners."""
        del event
        self._replicas[body["shard"]] = body["replicas"]
        self._shard_of.clear()

    def _node_observed(self, event: Event, body: Json) -> None:
        del event
        self.allocatable[body["node"]["name"]] = body["node"]["allocatable"]

    def _topology_observed(self, event: Event, body: Json) -> None:
        del event
        topology = body["topology"]
        for zone in topology["zones"]:
            for resource, amounts in zone["resources"].items():
                self.zones[topology["node"], zone["name"], resource] = amounts["allocatable"]

    def _pod_observed(self, event: Event, body: Json) -> None:
        del event
        seen = body["pod"]
        pod = self._pod(seen["uid"])
        pod.name = seen["name"]
        pod.phase = seen.get("phase", "Pending")
        pod.queue = seen.get("labels", {}).get("kai.scheduler/queue", "")
        pod.gang = seen.get("annotations", {}).get("pod-group-name", "")
        pod.requests = requests_of(seen["containers"])
        if seen.get("node_name"):
            pod.node, pod.bound = seen["node_name"], True
        pod.deleting = pod.deleting or seen.get("deletion_at") is not None
        pod.leaving = pod.leaving or pod.deleting
        if seen["namespace"] == NAMESPACE:
            # It takes the place of the planned one, with the zones that were predicted for that.
            planned = self.pods.pop(f"gpu-group/{seen.get('labels', {}).get(GROUP, '')}", None)
            pod.zones = pod.zones if planned is None else planned.zones
        if pod.phase in _OVER:
            pod.over = True
            self.shares.release(pod.uid)
            pod.succeeded = pod.phase == "Succeeded"

    def _pod_deleted(self, event: Event, body: Json) -> None:
        del event
        self._pod(body["uid"]).over = True
        self.shares.release(body["uid"])

    def _gpu_opened(self, event: Event, body: Json) -> None:
        self.shares.gpu_opened(body)
        planned = self._pod(f"gpu-group/{body['group']}")
        planned.name, planned.node, planned.zones = body["name"], body["node"], zones_of(body.get("placement"))
        self._check_zones(event, planned)

    def _gpu_closed(self, event: Event, body: Json) -> None:
        del event
        self.shares.gpu_closed(body)
        self.pods.pop(f"gpu-group/{body['group']}", None)

    def _eviction_decided(self, event: Event, body: Json) -> None:
        del event
        self._pod(body["uid"]).leaving = True

    def _eviction_failed(self, event: Event, body: Json) -> None:
        """The pod stays, unless it is gone already, or is being deleted for another reason."""
        pod, gone = self._pod(body["uid"]), bool(body.get("gone"))
        if gone and body["uid"] in self.api_pods:
            self.wrong(f"event {event.position}: pod {pod.name} is reported gone, and is there")
        pod.leaving = pod.deleting or gone

    def _pod_placed(self, event: Event, body: Json) -> None:
        pod, node = self._pod(body["uid"]), body["node"]
        if pod.node and not pod.over:
            self.wrong(f"event {event.position}: pod {pod.name} is placed on {node}, and is on {pod.node} already")
        shard = body["cycle"].rpartition("/")[0]
        # Each queue of the load has a limit, so its account has one owner as well.
        for owned in (pod.gang or pod.uid, f"queue {pod.queue}"):
            if self._shard_of.setdefault(owned, shard) != shard:
                self.wrong(
                    f"event {event.position}: {owned} is decided by {shard}, and by {self._shard_of[owned]} before"
                )
        pod.node, pod.bound, pod.outcome, pod.zones = node, False, False, zones_of(body.get("placement"))
        pod.milli = self.shares.placed(pod.uid, pod.name, body)
        self._check_zones(event, pod)
        self._check_limit(event, pod)

    def _check_zones(self, event: Event, pod: LoggedPod) -> None:
        held: dict[tuple[str, str], int] = defaultdict(int)
        for other in self.pods.values():
            if other.node == pod.node and not other.over and other is not pod:
                for key, amount in other.zones.items():
                    held[key] += amount
        node = pod.node
        for (zone, resource), amount in pod.zones.items():
            most = self.zones.get((node, zone, resource))
            if most is not None and held[zone, resource] + amount > most:
                self.wrong(
                    f"event {event.position}: pod {pod.name} is promised {amount} {resource} of {zone} of {node}, which"
                    f" has {most}, and {held[zone, resource]} are taken"
                )

    def _check_limit(self, event: Event, placed: LoggedPod) -> None:
        if not placed.requests.get(_GPU) and not placed.milli:
            return
        there = [pod for pod in self.pods.values() if pod.queue == placed.queue and pod.node]
        used = sum(pod.requests.get(_GPU, 0) + pod.milli / 1000 for pod in there if not (pod.over or pod.leaving))
        if used > LIMITS.get(placed.queue, used):
            self.wrong(f"event {event.position}: queue {placed.queue} has {used} GPUs, of {LIMITS[placed.queue]}")

    def _check_gang(self, gang: str) -> None:
        """An append places so much of a gang that the gang has its minimum."""
        members = [pod for pod in self.pods.values() if pod.gang == gang]
        count = sum(pod.succeeded or bool(pod.node and not pod.over) for pod in members)
        if count < self._gangs.get(gang, 0):
            self.wrong(f"gang {gang} was given {count} places, of {self._gangs[gang]}")

    def _pod_bound(self, event: Event, body: Json) -> None:
        pod = self._pod(body["uid"])
        if pod.node != body["node"]:
            self.wrong(
                f"event {event.position}: pod {pod.name} is bound to {body['node']}, but was placed on {pod.node}"
            )
        seen = self.api_pods.get(pod.uid)
        if seen is not None and seen.node != body["node"]:
            self.wrong(f"event {event.position}: pod {pod.name} is bound to {body['node']}, the API has {seen.node!r}")
        self._take_outcome(event, pod)
        pod.bound = True

    def _take_outcome(self, event: Event, pod: LoggedPod) -> None:
        if pod.outcome:
            self.wrong(f"event {event.position}: the decision about pod {pod.name} has a second outcome")
        pod.outcome = True

    def _bind_failed(self, event: Event, body: Json) -> None:
        pod = self._pod(body["uid"])
        self._take_outcome(event, pod)
        if not pod.bound:
            pod.node, pod.zones, pod.milli = "", {}, 0
            self.shares.release(pod.uid)

    def _placement_observed(self, event: Event, body: Json) -> None:
        del event
        pod = self._pod(body["uid"])
        if pod.node == body["node"]:
            pod.zones = zones_of(body["placement"])

    # --- the API server ---------------------------------------------------------------------------------------------

    def pod_written(self, body: Json, *, gone: bool) -> None:
        """Look at a pod that the API server has written, or deleted."""
        metadata, spec = body["metadata"], body["spec"]
        uid, node = metadata["uid"], spec.get("nodeName", "")
        before = self.api_pods.get(uid)
        if metadata["namespace"] == NAMESPACE:
            self.shares.reservation_written(metadata, node, gone=gone)
        if gone:
            self.api_pods.pop(uid, None)
            return
        phase = body.get("status", {}).get("phase", "Pending")
        reservation = metadata["namespace"] == NAMESPACE
        pod = self.api_pods[uid] = ApiPod(
            uid, metadata["name"], node, phase, "deletionTimestamp" in metadata, requested(spec), reservation
        )
        if before is not None and before.node and before.node != node:
            self.wrong(f"pod {pod.name} is on {node!r}, and was bound to {before.node}")
        if node and (before is None or not before.node):
            self.counts["bindings"] += 1
            self._check_binding(pod)

    def _check_binding(self, pod: ApiPod) -> None:
        logged = self.pods.get(pod.uid)
        if pod.reservation:
            self.counts["reservations"] += 1
        elif logged is None or logged.node != pod.node:
            if logged is not None and not logged.node:
                self.late.add(pod.uid)
                self.counts["late bindings"] += 1
                return
            self.wrong(f"pod {pod.name} is bound to {pod.node}, where no decision has placed it")
        held: dict[str, int] = defaultdict(int)
        there = [other for other in self.api_pods.values() if other.node == pod.node and other.phase not in _OVER]
        for other in there:
            for resource, amount in other.requests.items():
                held[resource] += amount
        if any(other.uid in self.late for other in there):
            return
        self.shares.check_devices({other.uid: other.name for other in there})
        if pod.reservation or pod.node in self.shares.lost:
            # What was promised meanwhile may be on its way; where the pod was lost, its GPU may be given away.
            return
        for resource, amount in held.items():
            most = self.allocatable.get(pod.node, {}).get(resource)
            if most is not None and amount > most:
                names = ", ".join(other.name for other in there)
                self.wrong(f"node {pod.node} has {most} {resource}, and {amount} are promised to {names}")

    # --- in the end -------------------------------------------------------------------------------------------------

    def partial_gangs(self, members: dict[str, list[str]]) -> list[str]:
        """The gangs of which some pods run, fewer than the minimum; `members` has the uids of all that ever came."""
        partial = []
        for gang, uids in members.items():
            running = sum(
                (pod := self.api_pods.get(uid)) is not None and bool(pod.node) and pod.phase not in _OVER
                for uid in uids
            )
            done = sum(uid in self.pods and self.pods[uid].succeeded for uid in uids)
            if running and running + done < self._gangs[gang]:
                partial.append(gang)
        return partial

    def check_agreement(self) -> None:
        """The log says of every pod what the API server says."""
        for uid, pod in self.api_pods.items():
            logged = self.pods.get(uid)
            if logged is None:
                self.wrong(f"the log knows nothing of pod {pod.name}")
            elif (logged.phase, logged.node) != (pod.phase, pod.node):
                self.wrong(
                    f"pod {pod.name} is {pod.phase} on {pod.node!r}, the log says {logged.phase} on {logged.node!r}"
                )
        for uid, logged in self.pods.items():
            if not logged.over and uid not in self.api_pods:
                self.wrong(f"pod {logged.name} is gone, and the log says {logged.phase} on {logged.node!r}")
