"""One node of the running fleet: its agent, what the API has of it, and what is wrong with it on purpose."""

from collections.abc import Callable

from kai_fleet.agent import Agent, Instruction
from kai_fleet.checkpoint import restore, snapshot
from kai_fleet.kubelet import Kubelet
from kai_fleet.metrics import Metrics
from kai_fleet.nodes import NodeSpec
from kai_fleet.publisher import Publisher
from kai_fleet.state_files import RECONCILE_PERIOD_S, StateFiles
from kai_fleet.timers import Timers
from kai_fleet.wire import NodeObject, PodObject
from kai_fleet.writer import Writer

#: Carries out instructions of a node's agent.
Execute = Callable[["NodeRuntime", list[Instruction]], None]


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
            spec: what it is.
            timers: what it waits with.
            background: sends what no pod waits for.
            metrics: where it counts.
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
        """Whether the API has a Node for this node."""
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
            self._execute(self, self.agent.pod_seen(pod, self.timers.clock()))

    def pod_gone(self, uid: str) -> None:
        """Take note that the API no longer has a pod."""
        self.api_pods.pop(uid, None)
        if self._acts:
            self.agent.pod_gone(uid)
            self._execute(self, [])

    def wake(self, when: float) -> None:
        """Let the agent do what is due at the time for which it asked: the time of day may have been set back since."""
        if self._acts:
            self._execute(self, self.agent.due(max(when, self.timers.clock())))

    @property
    def _acts(self) -> bool:
        return self._synced and not self.down

    def _sync(self) -> None:
        if self.down:
            return
        now = self.timers.clock()
        wakes: list[Instruction] = [] if self._synced else list(self.agent.wakes(now))
        self._synced = True
        self._execute(self, [*wakes, *self.agent.synced(self.api_pods.values(), now), *self.agent.due(now)])

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

        Raises:
            KeyError: the node has no such device.
        """
        self.agent.kubelet.set_device_health(resource, device, healthy=healthy)
        self.write_state_files()
        self.publisher.changed()
