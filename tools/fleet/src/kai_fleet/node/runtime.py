"""One node of the running fleet: its agent, what the API has of it, and what is wrong with it on purpose.

Publisher of a node's NodeResourceTopology: it writes some time after a change, and periodically.

Everything that is to happen later, in one heap with one timer of the event loop: no node has a task of its own.
"""

import asyncio
import heapq
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import msgspec
from kaicore.errors import ApiStatus
from kaicore.kube.api.client import MERGE_PATCH
from kaicore.runtime.service import get_logger

from kai_fleet.kubelet import Kubelet
from kai_fleet.node.agent import Agent, Instruction
from kai_fleet.node.checkpoint import restore, snapshot
from kai_fleet.node.nrt import API_VERSION, PATH, NrtBuilder
from kai_fleet.node.objects import owner
from kai_fleet.node.pod_conversion import NodeObject, PodObject
from kai_fleet.node.state_files import RECONCILE_PERIOD_S, StateFiles
from kai_fleet.profiles.nodes import NodeSpec
from kai_fleet.writer import Metrics, Write, Writer


class Timers:
    """Callbacks by time of day, in seconds of Unix time.

    What is still to come is kept by the loop's clock, which never jumps: when the time of day is set, an hour back say,
    nothing waits for an hour more, and nothing that has time yet comes at once.
    """

    def __init__(self, *, after: Callable[[], None], clock: Callable[[], float] = time.time) -> None:
        """Make an empty heap; `after` is called once after each round of callbacks."""
        self.clock = clock
        self._after = after
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._handle: asyncio.TimerHandle | None = None
        self._armed_for = float("inf")
        self._stopped = False

    def at(self, when: float, callback: Callable[[], None], *, now: float | None = None) -> None:
        """Call `callback` at `when`, or as soon as possible.

        Args:
            now: by which `when` was reckoned; ahead of the clock where that was set back since. By default the clock's.
        """
        due = asyncio.get_running_loop().time() + max(0.0, when - (self.clock() if now is None else now))
        heapq.heappush(self._heap, (due, next(self._numbers), callback))
        if due < self._armed_for:
            self._arm()

    def _arm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._armed_for = float("inf")
        if self._heap and not self._stopped:
            self._armed_for = self._heap[0][0]
            # A loop's timers count whole milliseconds: one too late, or it fires early and over and over.
            self._handle = asyncio.get_running_loop().call_at(self._armed_for + 0.001, self._fire)

    def _fire(self) -> None:
        now = asyncio.get_running_loop().time()
        self._armed_for = float("-inf")
        while self._heap and self._heap[0][0] <= now:
            callback = heapq.heappop(self._heap)[2]
            try:
                callback()
            except Exception as error:
                get_logger().exception("a timer failed", error=repr(error))
        self._after()
        self._arm()

    def stop(self) -> None:
        """Call nothing any more."""
        self._stopped = True
        self._heap.clear()
        if self._handle is not None:
            self._handle.cancel()


_encode = msgspec.json.Encoder().encode

#: Why RTE wrote last. So the first periodic write after others changes the object, and watchers see it: what
#: kube-scheduler holds back as unschedulable is looked at again. Source: resource-topology-exporter v0.10.
_RTE_UPDATE = "k8stopoawareschedwg/rte-update"


@dataclass(slots=True)
class PublisherFaults:
    """A publisher's faults, for tests."""

    #: Seconds by which every event-driven write is later.
    lag_s: float = 0.0
    #: So many of the next writes never reach the API server.
    lose: int = 0
    #: The fingerprint counts a pod that does not exist.
    wrong_fingerprint: bool = False


class Publisher:
    """Writes the object of one node; nothing when the profile says `none`."""

    def __init__(
        self,
        spec: NodeSpec,
        kubelet: Callable[[], Kubelet],
        *,
        timers: Timers,
        writer: Writer,
        metrics: Metrics,
        on_written: Callable[[], None] = lambda: None,
    ) -> None:
        """Make a publisher.

        Args:
            kubelet: returns the node's kubelet, which is another one after a restart.
            on_written: called after every write.
        """
        self.faults = PublisherFaults()
        #: The node's uid, once it is registered.
        self.owner_uid = ""
        #: The API server has had the object at least once.
        self.written = False
        self._on_written = on_written
        self._spec = spec
        self._profile = spec.group.nrt
        self._kubelet = kubelet
        self._builder = NrtBuilder(spec, kubelet())
        self._timers, self._writer, self._metrics = timers, writer, metrics
        self._random = random.Random(spec.number)
        self._exists = False
        self._running = False
        #: When the next write is due; timers for other times are void.
        self._due = float("inf")
        #: Since when the API server does not know the truth; None when it does.
        self._stale_since: float | None = None
        self._published = b""

    @property
    def enabled(self) -> bool:
        """True if this node has a publisher at all."""
        return self._profile.publisher != "none"

    def start(self, *, exists: bool) -> None:
        """Begin: the first write comes at once; `exists` says that the object is likely to be there already."""
        if not self.enabled:
            return
        self._builder = NrtBuilder(self._spec, self._kubelet())
        self._exists, self._running, self._published = exists, True, b""
        now = self._timers.clock()
        self._stale_since = now
        self._schedule(now)

    def stop(self) -> None:
        """Write nothing any more, as when the node is deleted."""
        self._running = False
        self._due = float("inf")

    def changed(self) -> None:
        """Something on the node changed: write after the delay, unless a write is due before."""
        if not self._running:
            return
        now = self._timers.clock()
        if self._stale_since is None:
            self._stale_since = now
        wait = self._profile.delay + self._profile.jitter * self._random.random() + self.faults.lag_s
        if now + wait < self._due:
            self._schedule(now + wait)

    def _schedule(self, when: float) -> None:
        self._due = when
        if when < float("inf"):
            self._timers.at(when, partial(self._fire, when))

    def _fire(self, when: float) -> None:
        # Not by the time of day, which may have been set back: only by whether this is the last that was asked for.
        if not self._running or when != self._due:
            return
        now = self._timers.clock()
        period = self._profile.period
        periodic = self._stale_since is None
        self._schedule(now + period * (1 - 0.1 * self._random.random()) if period else float("inf"))
        if self.faults.lose > 0:
            self.faults.lose -= 1
            self._metrics.nrt_publishes.labels("lost").inc()
            return
        if self._writer.is_busy(self._key):
            # The one before is not answered yet: do not pile up, come again.
            self._schedule(now + max(self._profile.delay, 0.2))
            return
        body = self._builder.build(self._kubelet(), wrong_fingerprint=self.faults.wrong_fingerprint)
        content = _encode(body)
        if content == self._published and not periodic:
            self._stale_since = None
            self._metrics.nrt_publishes.labels("unchanged").inc()
            return
        if self._profile.publisher == "rte":
            reason = "periodic" if periodic else "reactive"
            body.setdefault("metadata", {}).setdefault("annotations", {})[_RTE_UPDATE] = reason
        self._send(body, content)

    @property
    def _key(self) -> str:
        return f"nrt/{self._spec.name}"

    def _send(self, body: dict[str, Any], content: bytes) -> None:
        """Write a body; `content` is what it says of the node, by which the next one is compared."""
        since, self._stale_since = self._stale_since, None

        def done(outcome: bytes | ApiStatus) -> None:
            self._answered(outcome, body, content, since)

        if self._exists:
            path = f"{PATH}/{self._spec.name}"
            self._writer.submit(Write(self._key, "nrt", "PATCH", path, _encode(body), MERGE_PATCH, done))
        else:
            metadata = {"name": self._spec.name, **body.get("metadata", {})}
            if self.owner_uid:
                metadata["ownerReferences"] = [owner(self._spec, self.owner_uid)]
            whole = {**body, "apiVersion": API_VERSION, "kind": "NodeResourceTopology", "metadata": metadata}
            self._writer.submit(Write(self._key, "nrt", "POST", PATH, _encode(whole), done=done))

    def _answered(self, outcome: bytes | ApiStatus, body: dict[str, Any], content: bytes, since: float | None) -> None:
        if not isinstance(outcome, ApiStatus):
            self._exists = True
            self._published = content
            self.written = True
            self._on_written()
            self._metrics.nrt_publishes.labels("sent").inc()
            if since is not None:
                self._metrics.nrt_lag.observe(max(0.0, self._timers.clock() - since))
            return
        self._stale_since = since if self._stale_since is None else self._stale_since
        if not self._running:
            return
        # Gone, or there already: the other way round. Anything else: at the next occasion.
        if (outcome.code == 404 and self._exists) or (outcome.code == 409 and not self._exists):
            self._exists = not self._exists
            self._schedule(self._timers.clock())
            return
        get_logger(node=self._spec.name).warning("NodeResourceTopology was not written", error=str(outcome))
        self._published = b""


#: Carries out instructions of a node's agent.
Execute = Callable[["NodeRuntime", list[Instruction], float], None]


class NodeRuntime:
    """A node between the API server and its agent."""

    def __init__(
        self,
        spec: NodeSpec,
        *,
        timers: Timers,
        background: Writer,
        metrics: Metrics,
        execute: Execute,
        joined: Callable[[str], None],
    ) -> None:
        """Make a node.

        Args:
            execute: carries out the agent's instructions.
            joined: is called with the node's name when the API server has its Node and its NodeResourceTopology.
        """
        self.spec = spec
        self.agent = Agent(spec)
        self.publisher = Publisher(
            spec, self._kubelet, timers=timers, writer=background, metrics=metrics, on_written=self.check_joined
        )
        self.timers, self.background = timers, background
        #: Pods bound to this node as the API last had them, by uid.
        self.api_pods: dict[str, PodObject] = {}
        #: The Node's uid, while there is a Node.
        self.uid = ""
        self.ready_since = 0.0
        #: The Node as the API last had it.
        self.api_node: NodeObject | None = None
        #: There is a Node of that name that is not of a fleet.
        self.foreign = False
        #: Counts registrations; heartbeats of an earlier one end.
        self.session = 0
        #: The kubelet process is not running; containers are.
        self.down = False
        self.has_lease = False
        #: No heartbeats are sent, as if the node had lost the network.
        self.silent = False
        #: Where exporters see what pods hold.
        self.state_files: StateFiles | None = None
        self._reconcile_at: float | None = None
        self._synced = False
        self._execute = execute
        self._joined = joined

    def _kubelet(self) -> Kubelet:
        return self.agent.kubelet

    @property
    def registered(self) -> bool:
        """True if the API has a Node for this node."""
        return bool(self.uid)

    def check_joined(self) -> None:
        """Tell when everything about the node that others wait for has been written."""
        if self.foreign or (self.registered and (self.publisher.written or not self.publisher.enabled)):
            self._joined(self.spec.name)

    # --- pods -----------------------------------------------------------------------------------------------------

    def synced(self, pods: list[PodObject]) -> None:
        """Take a complete list of the pods bound to this node."""
        self.api_pods = {pod.metadata.uid: pod for pod in pods}
        self._sync()

    def pod_seen(self, pod: PodObject) -> None:
        """Take a pod as the API has it now."""
        self.api_pods[pod.metadata.uid] = pod
        if self._acts:
            now = self.timers.clock()
            self._execute(self, self.agent.pod_seen(pod, now), now)

    def pod_gone(self, uid: str) -> None:
        """Take note that the API no longer has a pod."""
        self.api_pods.pop(uid, None)
        if self._acts:
            self.agent.pod_gone(uid)
            self._execute(self, [], self.timers.clock())

    def wake(self, when: float) -> None:
        """Let the agent do what is due at the time for which it asked: the time of day may have been set back since."""
        if self._acts:
            now = max(when, self.timers.clock())
            self._execute(self, self.agent.due(now), now)

    @property
    def _acts(self) -> bool:
        return self._synced and not self.down

    def _sync(self) -> None:
        if self.down:
            return
        now = self.timers.clock()
        wakes: list[Instruction] = [] if self._synced else list(self.agent.wakes(now))
        self._synced = True
        self._execute(self, [*wakes, *self.agent.synced(self.api_pods.values(), now), *self.agent.due(now)], now)

    # --- state files ----------------------------------------------------------------------------------------------

    def write_state_files(self) -> None:
        """Write what a kubelet would have written by now, and see to it that its reconcile loop comes round."""
        if self.state_files is None or self.down:
            return
        to_reconcile = self.state_files.changed(self.agent.kubelet, in_admission=bool(self.agent.half_way))
        if to_reconcile and self._reconcile_at is None:
            now = self.timers.clock()
            self._reconcile_at = now - now % RECONCILE_PERIOD_S + RECONCILE_PERIOD_S
            self.timers.at(self._reconcile_at, self._reconcile)

    def _reconcile(self) -> None:
        self._reconcile_at = None
        if self.state_files is not None and not self.down:
            self.agent.kubelet.sweep()
            self.state_files.reconciled(self.agent.kubelet)

    # --- faults ---------------------------------------------------------------------------------------------------

    def kubelet_stops(self) -> None:
        """The kubelet process ends; pods go on running, but without a kubelet."""
        self.down = True

    def kubelet_starts(self) -> None:
        """The kubelet starts again: it reads its checkpoint, then lists its pods."""
        before, self.agent = self.agent, Agent(self.spec)
        restore(self.agent, snapshot(before))
        self.agent.kubelet.labels = before.kubelet.labels
        self.agent.lag = before.lag
        self.down = False
        self._synced = False
        self._sync()

    def set_device_health(self, resource: str, device: str, *, healthy: bool) -> None:
        """A device plugin reports a device as unhealthy, or as healthy again.

        Raises KeyError: the node has no such device.
        """
        self.agent.kubelet.set_device_health(resource, device, healthy=healthy)
        self.write_state_files()
        self.publisher.changed()
