"""Faults, and their ends."""

from collections.abc import Callable
from functools import partial

from tests.simulation.loop import Process
from tests.simulation.network import Link
from tests.simulation.plan import NODES, Fault
from tests.simulation.world import World

#: Seconds after which the control plane takes a silent node for lost, and after which its pods are gone.
_UNKNOWN_S, _GONE_S = 0.7, 1.5


class Faults:
    def __init__(self, world: World) -> None:
        self._world = world
        self._healing = False
        self._undo: list[Callable[[], None]] = []

    def strike(self, fault: Fault) -> None:
        """Have a fault strike now; it ends by itself or with `heal`."""
        self._world.tell(f"fault {fault.kind} {fault.target} {fault.server}")
        self._world.faults[fault.kind] += 1
        getattr(self, "_" + fault.kind.replace("-", "_"))(fault)

    def heal(self) -> None:
        self._healing = True
        for end in list(self._undo):
            end()
        world = self._world
        for role in world.roles.values():
            if role.process is not None:
                role.process.dies_at_step = 0
            world.start_again(role.name)
        for site, name in ((site, name) for site in world.sites for name in NODES):
            site.api.patch("", "nodes", name, {"spec": {"unschedulable": False}})

    def _until(self, seconds: float, end: Callable[[], None]) -> None:
        """Have something end after a while, or when all is healed; once."""

        def once() -> None:
            if once in self._undo:
                self._undo.remove(once)
                end()

        self._undo.append(once)
        self._world.loop.call_later(seconds, once)

    # --- processes --------------------------------------------------------------------------------------------------

    def _process(self, fault: Fault) -> Process | None:
        process = self._world.roles[fault.target].process
        return None if process is None or process.dead else process

    def _crash(self, fault: Fault) -> None:
        process = self._process(fault)
        if process is None:
            return
        world, before = self._world, process.on_death

        def died() -> None:
            before()
            world.tell(f"dead {process.name} step {process.steps}")
            world.loop.call_later(fault.seconds, world.start_again, fault.target)

        process.on_death = died
        process.dies_at_step = process.steps + fault.count

    def _pause(self, fault: Fault) -> None:
        process = self._process(fault)
        if process is not None:
            process.pause()
            self._until(fault.seconds, process.resume)

    def _double(self, fault: Fault) -> None:
        """A second process of the same role for a while, as when a supervisor believes that the first is gone."""
        if fault.target.startswith("ingest"):
            return
        self._until(fault.seconds, self._world.start(fault.target, beside=True).kill)

    def _clock(self, fault: Fault) -> None:
        process = self._process(fault)
        if process is None:
            return
        process.offset_s += fault.amount

        def back() -> None:
            process.offset_s -= fault.amount

        self._until(fault.seconds, back)

    def _node_loss(self, fault: Fault) -> None:
        """A node goes silent; the control plane gives it up, and its pods; then it comes back.

        The supervisor may start it meanwhile, after an earlier crash: then it is silent no more, and not given up.
        """
        world, role = self._world, f"kubelet-{fault.target}"
        process = world.roles[role].process
        if process is not None:
            process.kill()
        condition = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "silent"}
        starts = world.roles[role].starts

        def silent() -> bool:
            return world.roles[role].starts == starts

        def unknown() -> None:
            if silent():
                body = {"status": {"conditions": [condition]}}
                world.sites[0].api.patch("", "nodes", fault.target, body, subresource="status")

        def gone() -> None:
            pods = [pod.name for pod in world.sites[0].checker.api_pods.values() if pod.node == fault.target]
            for name in pods if silent() else ():
                world.sites[0].api.delete("pods", name, grace_s=0)

        world.loop.call_later(_UNKNOWN_S, unknown)
        world.loop.call_later(_GONE_S, gone)
        self._until(fault.seconds, partial(world.start_again, role))

    # --- links ------------------------------------------------------------------------------------------------------

    def _for_a_while(self, fault: Fault, name: str) -> None:
        links = self._world.network.links(fault.target, fault.server)
        if fault.target == "*":
            # A simulated kubelet does not look whether an old status of its own came after a newer one, as a real does.
            links = [link for link in links if not link.role.startswith("kubelet-")]
        for link in links:
            setattr(link, name, fault.amount)

        def end() -> None:
            for link in links:
                setattr(link, name, 0.0)

        self._until(fault.seconds, end)

    def _cut(self, fault: Fault) -> None:
        self._for_a_while(fault, "cut")

    def _twice(self, fault: Fault) -> None:
        self._for_a_while(fault, "twice")

    def _slow(self, fault: Fault) -> None:
        self._for_a_while(fault, "extra_s")

    def _bus_loss(self, fault: Fault) -> None:
        self._for_a_while(fault, "lossy")

    def _partition(self, fault: Fault) -> None:
        """Nothing passes; what was sent meanwhile arrives late, or nobody waits for it any more."""
        end = min(self._world.loop.time() + fault.seconds, self._world.plan.seconds)
        links: list[Link] = self._world.network.links(fault.target, fault.server)
        for link in links:
            link.heals_at = max(link.heals_at, end)

    def _cluster_lost(self, fault: Fault) -> None:
        """A cluster's processes reach neither log nor bus; everything in the cluster goes on."""
        world = self._world
        end = min(world.loop.time() + fault.seconds, world.plan.seconds)
        suffix = next(site.suffix for site in world.sites if site.cluster == fault.target)
        for role in world.roles:
            if role.partition("-c")[2] == suffix[2:] and not role.startswith(("hub", "relay", "kubelet")):
                for server in ("log", "bus"):
                    (link,) = world.network.links(role, server)
                    link.heals_at = max(link.heals_at, end)

    # --- servers ----------------------------------------------------------------------------------------------------

    def _log_restart(self, fault: Fault) -> None:
        """The log's server dies between a commit and its answer."""
        world, server = self._world, self._world.log_server
        left = [fault.count]

        def up() -> None:
            server.up = True

        def after_call(name: str) -> None:
            left[0] -= name == "append"
            if left[0] == 0 and not self._healing:
                server.after_call = lambda name: None
                world.tell("log dies")
                server.up = False
                server.break_connections()
                self._until(fault.seconds, up)

        server.after_call = after_call

    def _bus_restart(self, fault: Fault) -> None:
        world = self._world
        world.bus_server.up = False
        world.bus_server.break_connections()
        world.bus.restart()

        def up() -> None:
            world.bus_server.up = True

        self._until(fault.seconds, up)

    def _bus_wipe(self, fault: Fault) -> None:
        del fault
        self._world.bus.lose_everything()
        self._world.leases.wipe()

    def _api_restart(self, fault: Fault) -> None:
        world = self._world
        world.sites[0].api_server.up = False
        world.sites[0].api_server.break_connections()
        world.sites[0].api.compact()

        def up() -> None:
            world.sites[0].api_server.up = True

        self._until(fault.seconds, up)

    def _compact(self, fault: Fault) -> None:
        """The API server forgets what happened, and all watches end: they begin anew with a list."""
        del fault
        self._world.sites[0].api.compact()
        self._world.sites[0].api_server.break_connections()
