"""Charges of pods to their nodes and zones, from the best record of each, and the gaps that no record fills.

Memory is drawn in the order in which pods came, as kubelets draw it. Where an earlier pod's memory differs from the
assumed one, all later pods on that node are charged again.

Records may name memory that no kubelet holds together: of zones that serve two groups. Such zones are unknown to the
kubelet's rule for giving back, so after a release the remaining pods are charged again in order.
"""

from collections.abc import Callable
from functools import partial

import msgspec

from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.placement.pod_class import PodClass
from kaicore.rules.model.node import NodeTopology
from kaicore.rules.model.placement import ContainerPlacement, Placement
from kaicore.rules.model.pod import Amounts, ContainerKind, Pod
from kaicore.rules.numa.init_remains import init_remains
from kaicore.rules.numa.kubelet.admission import admit
from kaicore.rules.numa.kubelet.memory_manager import excluding
from kaicore.rules.numa.kubelet.verdict import Admitted, predicted_placement
from kaicore.rules.numa.kubelet.zones import NodeZones, ZoneCharge
from kaicore.rules.state.pods.agreement import MissCause, contradiction
from kaicore.rules.state.pods.pod_entry import NO_CHARGE, PodEntry, Remembered, Stage
from kaicore.rules.state.pods.resolve import zone_charge


class AccountChange(msgspec.Struct, frozen=True):
    """The change of a node's account by one event about one pod.

    Attributes:
        freed: of zones, what the pod has held until it ended.
        otherwise: an observation has shown that the pod holds something else than it was charged with.
    """

    freed: ZoneCharge = ZoneCharge()
    otherwise: bool = False


_AS_BEFORE, _OTHERWISE = AccountChange(), AccountChange(otherwise=True)


class NodeCharges:
    """The holdings of pods; writes to the columns that it was given."""

    def __init__(
        self,
        columns: NodeColumns,
        pods: dict[str, PodEntry],
        classes: dict[str, PodClass],
    ) -> None:
        """Args:
        columns: of the state; whole nodes' and zones' use in them is written by this class only.
        """
        #: The uids of the pods on each node that has any, in no order.
        self.on_node: dict[str, tuple[str, ...]] = {}
        self._columns = columns
        self._pods = pods
        self._classes = classes
        self._resolved: Remembered[ZoneCharge] = Remembered()

    def partly_unknown(self, entry: PodEntry) -> bool:
        """Tell whether a pod holds, or may hold, something of its node's zones that no record tells of.

        Either no record tells what a pod holds there, or it was observed, but what its init containers left with it was
        not, and may be on one zone or another.
        """
        if entry.unrecorded:
            return True
        return entry.charged and any(container.spans for container in entry.kept_by_init or ())

    def predict_init_remains(self, entry: PodEntry) -> None:
        """Predict again what a pod's init containers keep, where no record says it or the prediction is wrong."""
        entry.kept_by_init = None
        if entry.observed is None or entry.observed.init is not None or not entry.node:
            return
        row = self._columns.row(entry.node)
        topology = self._columns.topologies[row]
        if topology is None:
            return
        if entry.predicted is not None and contradiction(entry.predicted, entry.observed) is not MissCause.ZONES:
            return
        names = tuple(zone.name for zone in topology.zones)
        aligned = self._classes[entry.class_key].aligned.on(self._columns.zones.kubelet_of(row))
        nodes = partial(self._without, entry), partial(self._columns.node_zones, row, empty=True)
        entry.kept_by_init = init_remains(nodes, aligned, entry.observed, names)

    def _foretell(self, entry: PodEntry) -> None:
        """Predict the zones of a pod that another scheduler bound just now, and that holds nothing yet.

        By the log alone: what the node published may be from before. Nothing is predicted where the log does not tell
        all that the node holds, where the node is not ready, or where its kubelet should refuse the pod.
        """
        row = self._columns.row(entry.node)
        topology = self._columns.topologies[row]
        facts = self._columns.facts[row]
        if topology is None or facts is None or not facts.ready or self._columns.zones.unknown[row]:
            return
        aligned = self._classes[entry.class_key].aligned.on(self._columns.zones.kubelet_of(row))
        if aligned.empty or not self._columns.zones.binds(row, aligned.resources):
            return
        verdict = admit(self._columns.node_zones(row), aligned)
        if isinstance(verdict, Admitted):
            expected = predicted_placement(verdict, [zone.name for zone in topology.zones])
            entry.expected = None if expected is None else expected.placement

    def published(self, node: str) -> None:
        """A node without an exporter has published what is free: of pods that run, that tells more than the model."""
        pods = (self._pods[uid] for uid in self.on_node.get(node, ()))
        running = [entry for entry in pods if entry.expected is not None and entry.started_at]
        for entry in sorted(running, key=lambda entry: (entry.charged_at, entry.pod.uid)):
            entry.expected = None
            self.recharge(entry)

    def _without(self, entry: PodEntry) -> NodeZones:
        """Return the zones of a pod's node as if the pod were not there."""
        row = self._columns.row(entry.node)
        mark = self._columns.mark(row)
        if entry.pod.uid in self.on_node.get(entry.node, ()):
            self._columns.charge(row, entry.requests, sign=-1, releasing=entry.releasing)
            self._columns.zones.release(row, entry.zone_charge, releasing=entry.releasing)
        node = self._columns.node_zones(row)
        self._columns.restore(row, mark)
        return node

    def predicted_charge(self, entry: PodEntry) -> ZoneCharge:
        """Return what a pod is charged with on zones, whatever else it may hold instead."""
        return (self._resolve(entry, alternatives=()) if entry.alternatives else None) or entry.zone_charge

    def held_on(self, node: str, where: Callable[[PodEntry], bool] | None = None) -> list[PodEntry]:
        """Return the pods that are charged to a node, or some of them, in the order in which they came."""
        held = filter(where, map(self._pods.__getitem__, self.on_node.get(node, ())))
        return sorted(held, key=lambda entry: (entry.charged_at, entry.pod.uid))

    def update(
        self, before: PodEntry, after: PodEntry, held: str, holds: str, *, ended: bool, at: int
    ) -> AccountChange:
        """Charge a pod where it now is, with what is known of it now, and nowhere else.

        Args:
            before: a copy of the entry as it was before the event.
            held: the node that the pod was charged to; empty for none.
            holds: the node that it is to be charged to; empty for none.
            ended: it has ended on the node that it was charged to.
        """
        if held and before.requests is not after.requests:
            self._resize(after, held, before=before.requests)
        if held != holds:
            change = AccountChange(freed=self.predicted_charge(after)) if ended else _AS_BEFORE
            if held:
                self._release(after, held)
            if holds:
                # Seen waiting, it comes to its kubelet now.
                arrives = before.stage is Stage.WAITING and after.stage is Stage.BOUND and not after.started_at
                if arrives and after.observed is None:
                    self._foretell(after)
                self._hold(after, at=at)
            return change
        if after.observed is not before.observed:
            after.expected, after.alternatives = None, ()
            self.predict_init_remains(after)
            return _OTHERWISE if self.recharge(after) else _AS_BEFORE
        if before.pod is not after.pod and before.pod.phase == "Pending" != after.pod.phase and after.pod.has_init:
            # Once its containers run, the memory of its init containers is free.
            self.recharge(after)
        return _AS_BEFORE

    def _hold(self, entry: PodEntry, *, at: int) -> None:
        """Charge a pod that holds nothing to its node; `at` is the position of the event."""
        node = entry.node
        row = self._columns.row(node)
        self._columns.charge(row, entry.requests)
        self.predict_init_remains(entry)
        charge = self._resolve(entry)
        entry.zone_charge = self._columns.zones.charge(row, charge or NO_CHARGE)
        entry.releasing, entry.charged_at = False, at
        self.on_node[node] = *self.on_node.get(node, ()), entry.pod.uid
        self._set_unrecorded(entry, recorded=charge is not None)
        if entry.stage is Stage.PLACED and entry.zone_charge != NO_CHARGE:
            self._columns.zones.assume(row, entry.zone_charge)

    def _resize(self, entry: PodEntry, node: str, *, before: Amounts) -> None:
        """Charge a pod that was resized in place with what it asks for now; its zones change when they are observed."""
        row = self._columns.row(node)
        self._columns.charge(row, before, sign=-1, releasing=entry.releasing)
        self._columns.charge(row, entry.requests, releasing=entry.releasing)

    def restore(self, entry: PodEntry) -> None:
        """Charge a pod as a snapshot had it charged; the node's memory is as it was already."""
        row = self._columns.row(entry.node)
        self._columns.charge(row, entry.requests, releasing=entry.releasing)
        self._columns.zones.restore_charge(row, entry.zone_charge, releasing=entry.releasing)
        self.on_node[entry.node] = *self.on_node.get(entry.node, ()), entry.pod.uid
        if entry.unrecorded:
            entry.unrecorded = False
            self._note_unrecorded(entry, entry.node, unrecorded=True)

    def recharge(self, entry: PodEntry) -> bool:
        """Charge a pod with what is known of it now; returns whether that changes anything."""
        row, zones = self._columns.row(entry.node), self._columns.zones
        resolved = self._resolve(entry)
        charge = resolved or NO_CHARGE
        self._set_unrecorded(entry, recorded=resolved is not None)
        exchanged = zones.exchange(row, entry.zone_charge, charge, releasing=entry.releasing)
        if exchanged is entry.zone_charge:
            return False
        apart = bool(entry.zone_charge.blocks) and self._has_excluding_groups(entry.node)
        entry.zone_charge = charge if exchanged is None else exchanged
        if exchanged is None or apart:
            # Memory turned out differently: what the pods after it found is as different, so all are predicted anew.
            self._charge_again(entry.node)
        return True

    def _release(self, entry: PodEntry, node: str) -> None:
        """Take what a pod holds off a node, which its entry may not name any more."""
        row, apart = self._columns.row(node), bool(entry.zone_charge.blocks) and self._has_excluding_groups(node)
        self._columns.charge(row, entry.requests, sign=-1, releasing=entry.releasing)
        self._columns.zones.release(row, entry.zone_charge, releasing=entry.releasing)
        entry.releasing = False
        entry.zone_charge = NO_CHARGE
        entry.kept_by_init, entry.expected, entry.alternatives = None, None, ()
        self._note_unrecorded(entry, node, unrecorded=False)
        self.on_node[node] = tuple(uid for uid in self.on_node[node] if uid != entry.pod.uid)
        if not self.on_node[node]:
            del self.on_node[node]
        if apart:
            self._charge_again(node)

    def set_releasing(self, entry: PodEntry, *, ends: bool = False) -> None:
        """A terminating pod holds what it holds until it is gone, but is known to let go of it.

        Args:
            ends: it ends with others that terminate.
        """
        releasing = entry.charged and (entry.leaving or ends)
        if entry.releasing == releasing:
            return
        row = self._columns.row(entry.node)
        for sign, flag in ((-1, entry.releasing), (1, releasing)):
            self._columns.charge(row, entry.requests, sign=sign, releasing=flag)
        self._columns.zones.set_releasing(row, entry.zone_charge, releasing=releasing)
        entry.releasing = releasing

    def node_seen(self, node: str) -> None:
        """A node's settings may have changed, and with them what its kubelet binds to zones."""
        for entry in self.held_on(node):
            self._set_unrecorded(entry, recorded=self._resolve(entry) is not None)

    def set_topology(self, node: str, topology: NodeTopology | None) -> None:
        """Give a node other zones, or none, and charge its pods to them."""
        row = self._columns.row(node)
        self._columns.set_topology(topology, row)
        pods = self.held_on(node)
        for entry in pods:
            entry.zone_charge = NO_CHARGE
        for entry in pods:
            self.predict_init_remains(entry)
            charge = self._resolve(entry) or NO_CHARGE
            entry.zone_charge = self._columns.zones.charge(row, charge, releasing=entry.releasing)
        self.node_seen(node)

    def _resolve(self, entry: PodEntry, alternatives: tuple[Placement, ...] | None = None) -> ZoneCharge | None:
        """Return what a pod's records charge; what most pods are like is worked out once for all of them."""
        row, zones = self._columns.row(entry.node), self._columns.zones
        topology = self._columns.topologies[row]
        if topology is None:
            return NO_CHARGE
        pod, observed, kept = entry.pod, entry.observed, entry.kept_by_init
        predicted = entry.predicted or entry.expected
        alternatives = entry.alternatives if alternatives is None else alternatives
        usual = not kept and not alternatives
        # The shape tells the zones, and the number of resources which ones zones of any node have.
        kinds = kept is None, pod.phase == "Pending", observed is not None and observed.init is None
        numbers = int(zones.shape[row]), len(zones.resources), *kinds
        parts = pod.containers, predicted and predicted.containers, observed and observed.containers
        charge = self._resolved.get(numbers, parts) if usual else None
        if charge is not None:
            return charge
        charge = zone_charge(
            zones,
            topology,
            pod=pod,
            predicted=predicted,
            observed=observed,
            kept=kept,
            alternatives=alternatives,
        )
        return charge if charge is None or not usual else self._resolved.put(numbers, parts, charge)

    def _has_excluding_groups(self, node: str) -> bool:
        """Tell whether the pods of a node are charged with memory of zones in two groups, which its kubelet forbids.

        One that regroups zones has them as the last block left them: charged anew, they would be as they never were.
        """
        if not self._columns.zones.kubelet_of(self._columns.row(node)).refuses_mixed_memory_groups:
            return False
        held = (self._pods[uid] for uid in self.on_node.get(node, ()))
        return excluding({block.mask for entry in held for block in entry.zone_charge.blocks})

    def _charge_again(self, node: str) -> None:
        row, zones = self._columns.row(node), self._columns.zones
        zones.clear_charges(row)
        for entry in self.held_on(node):
            entry.zone_charge = zones.charge(row, entry.zone_charge, releasing=entry.releasing)

    def _set_unrecorded(self, entry: PodEntry, *, recorded: bool) -> None:
        """Note whether a pod that has something bound to zones has no record that tells which.

        A record that tells no containers apart, as KAI-Scheduler's, may leave a resource out. An exporter's report that
        does so was made in the middle of an admission, and the next one tells the rest.
        """
        record = entry.observed or entry.predicted
        if recorded and (record is None or all(item.container for item in record.containers)):
            self._note_unrecorded(entry, entry.node, unrecorded=False)
            return
        named = {name for item in record.containers for name in _resources(item)} if recorded and record else set[str]()
        row, zones = self._columns.row(entry.node), self._columns.zones
        aligned = self._classes[entry.class_key].aligned.on(zones.kubelet_of(row))
        left_out = aligned.resources
        if named:
            lasting = (item for item in aligned.containers if item.kind is not ContainerKind.INIT)
            left_out = tuple({name for item in lasting for name, amount in item.amounts if amount} - named)
        self._note_unrecorded(entry, entry.node, unrecorded=zones.binds(row, left_out))

    def _note_unrecorded(self, entry: PodEntry, node: str, *, unrecorded: bool) -> None:
        if unrecorded == entry.unrecorded:
            return
        row = self._columns.row(node)
        zones, entry.unrecorded = self._columns.zones, unrecorded
        zones.unknown[row] += 1 if unrecorded else -1
        since = [other.charged_at for other in self.held_on(node) if other.unrecorded]
        zones.unknown_since[row] = min(since, default=0)


def _resources(container: ContainerPlacement) -> set[str]:
    amounts = [zone.amount for zone in container.zones]
    amounts += [span.amount for span in (*container.spans, *container.blocks)]
    return {name for amount in amounts for name in amount}


def is_resized(before: Pod, after: Pod) -> bool:
    """Tell whether a pod on a node asks for something else than before: nothing but a resize in place brings that."""
    return (
        bool(after.node_name)
        and before.containers is not after.containers
        and (before.containers, before.pod_resources) != (after.containers, after.pod_resources)
    )
