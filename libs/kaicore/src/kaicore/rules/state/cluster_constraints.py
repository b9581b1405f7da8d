"""Rules between pods, and the other objects of the cluster that constrain pods.

Namespaces, volumes and disruption budgets, from facts; the pods that each selection selects; and the marks that charged
pods leave on their nodes (`kaicore.rules.engine.constraints.pod_marks`). Without rules that look at pods it does next
to nothing.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from kaicore.rules.engine.constraints.device_demand import NO_DEVICES
from kaicore.rules.engine.constraints.flavor_demand import ANY_FLAVOR, FlavorDemand
from kaicore.rules.engine.constraints.pod_marks import carried_marks, claim_mark, selections, settled_mark
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.placement.pod_class import PodClass, variant
from kaicore.rules.events import payloads
from kaicore.rules.model.disruption import PodDisruptionBudget
from kaicore.rules.model.namespace import Namespace
from kaicore.rules.model.pod import Pod
from kaicore.rules.model.volume import PersistentVolume, PersistentVolumeClaim, StorageClass
from kaicore.rules.state.device_registry import DEVICE_FACTS, DeviceRegistry
from kaicore.rules.state.pod_entry import PodEntry
from kaicore.rules.state.selection_index import SelectionIndex
from kaicore.rules.state.volume_registry import VolumeRegistry, claim_keys

#: Facts that are for `ClusterConstraints.take`.
FACTS: tuple[type[payloads.Payload], ...] = (
    payloads.NamespaceObserved,
    payloads.NamespaceDeleted,
    payloads.PersistentVolumeClaimObserved,
    payloads.PersistentVolumeClaimDeleted,
    payloads.PersistentVolumeObserved,
    payloads.PersistentVolumeDeleted,
    payloads.StorageClassObserved,
    payloads.StorageClassDeleted,
    payloads.PodDisruptionBudgetObserved,
    payloads.PodDisruptionBudgetDeleted,
    *DEVICE_FACTS,
)


_encoder = msgspec.msgpack.Encoder(order="deterministic")


class ClusterConstraints:
    """Namespaces, volumes and budgets, which selections select which pods, and the marks that charged pods leave."""

    def __init__(self, columns: NodeColumns, entries: Mapping[str, PodEntry]) -> None:
        """Args:
        columns: whose marks are kept.
        entries: all pods of the state, by uid.
        """
        self._columns = columns
        self._entries = entries
        self._index = SelectionIndex()
        self._marked: dict[str, tuple[int, tuple[str, ...]]] = {}
        self._variants: dict[object, PodClass] = {}
        self.namespaces: dict[str, Namespace] = {}
        self.volumes = VolumeRegistry(columns.volumes)
        self.devices = DeviceRegistry(columns)
        #: What decisions gave to the claims of placed pods, by the pod's uid and the claim's name.
        self._promised: dict[str, dict[str, str]] = {}
        #: By `namespace/name`.
        self.budgets: dict[str, PodDisruptionBudget] = {}

    # Classes and pods.

    def class_known(self, pod_class: PodClass) -> None:
        """A class is new."""
        self.devices.extended.asked_for(pod_class.requests, sign=1)
        if pod_class.rules is None:
            return
        self._columns.marks.add_rules(pod_class.rules)
        for selection in selections(pod_class.rules):
            self._remark_all(self._index.add_selection(selection))

    def class_forgotten(self, pod_class: PodClass) -> None:
        """A class is no more."""
        self._variants.clear()
        self.devices.extended.asked_for(pod_class.requests, sign=-1)
        if pod_class.rules is None:
            return
        self._columns.marks.add_rules(pod_class.rules, sign=-1)
        for selection in selections(pod_class.rules):
            self._remark_all(self._index.remove_selection(selection))

    def pod_seen(self, pod: Pod) -> bool:
        """A pod is new or changed; return whether other selections select it than before."""
        if pod.finished:
            self.pod_gone(pod)
            return False
        if pod.claims:
            self.volumes.add_pod(pod)
        if pod.resource_claims:
            self.devices.add_pod(pod)
        return self._index.set_pod(pod)

    def pod_gone(self, pod: Pod) -> None:
        """A pod is no more, or finished."""
        if pod.claims:
            self.volumes.remove_pod(pod)
        if pod.resource_claims:
            self.devices.remove_pod(pod)
        self._index.remove_pod(pod.uid)

    def remark(self, entry: PodEntry) -> bool:
        """Have a pod's marks and volumes where it is charged, and nowhere else; return whether anything changed."""
        uid = entry.pod.uid
        promised = self._promise(uid, entry.volumes if entry.charged else {})
        promised |= self.devices.promise(entry.pod, entry.devices if entry.charged else {})
        marks = self._marks(entry) if entry.charged else ()
        before = self._marked.get(uid)
        if before is None and not marks:
            return promised
        after = (self._columns.row(entry.node), marks) if marks else None
        if before == after:
            return promised
        if before is not None:
            self._columns.marks.charge(before[0], before[1], sign=-1)
            del self._marked[uid]
        if after is not None:
            self._columns.marks.charge(after[0], after[1])
            self._marked[uid] = after
        return True

    def unbound_claims(
        self, pod: Pod, chosen: Sequence[str], *, also: Mapping[str, str]
    ) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return what becomes of a placed pod's claims that are not bound yet.

        Args:
            pod: the pod.
            chosen: a volume's name for each that its demand wants, empty where none was chosen.
            also: what the same cycle has given to claims that other pods may use as well, by `namespace/name`.

        Returns:
            names of those that are to be provisioned; and the volumes that others are to be bound to.
        """
        promised = dict(also)
        for key in claim_keys(pod):
            for uid in sorted(self.volumes.users(key)):
                volume = self._promised.get(uid, {}).get(key.partition("/")[2])
                if volume is not None:
                    promised.setdefault(key, volume)
        return self.volumes.unbound(pod, chosen, promised)

    def marks_of(self, uid: str) -> tuple[str, ...]:
        """Return the marks that a pod leaves on the node that it is charged to."""
        marked = self._marked.get(uid)
        return () if marked is None else marked[1]

    def budgets_of(self, pod: Pod) -> tuple[str, ...]:
        """Return the keys of the disruption budgets that a pod is under."""
        return tuple(
            key
            for key, budget in self.budgets.items()
            if budget.namespace == pod.namespace and self._index.meets(budget.selector, pod)
        )

    def variant(self, pod_class: PodClass, pod: Pod, flavors: FlavorDemand) -> PodClass:
        """Return the variant of a class that a pod is of: see `kaicore.rules.engine.placement.pod_class.variant`."""
        selected = self._index.marks_of(pod.uid)
        uses_devices = pod.resource_claims or self.devices.extended.serves(pod_class.requests)
        if not selected and not pod.claims and flavors is ANY_FLAVOR and not uses_devices:
            return pod_class
        volumes, devices = self.volumes.demand(pod), self.devices.demand(pod)
        key = (pod_class.key, selected, volumes, flavors, b"" if devices is NO_DEVICES else _encoder.encode(devices))
        of_pod = self._variants.get(key)
        if of_pod is None:
            of_pod = self._variants[key] = variant(pod_class, selected, volumes, flavors, devices)
        return of_pod

    # Facts.

    def take(self, payload: payloads.Payload) -> None:
        """Take in one of `FACTS`."""
        volumes = self.volumes
        match payload:
            case payloads.NamespaceObserved(namespace):
                self.namespaces[namespace.name] = namespace
                self._remark_all(self._index.set_namespace(namespace.name, namespace.labels))
            case payloads.NamespaceDeleted(_, name):
                if self.namespaces.pop(name, None) is not None:
                    self._remark_all(self._index.set_namespace(name, None))
            case payloads.PersistentVolumeClaimObserved(claim):
                volumes.claims[claim.key] = claim
            case payloads.PersistentVolumeClaimDeleted(_, namespace_name, name):
                volumes.claims.pop(f"{namespace_name}/{name}", None)
            case payloads.PersistentVolumeObserved(volume):
                volumes.volume_seen(volume)
            case payloads.PersistentVolumeDeleted(_, name):
                volumes.volume_gone(name)
            case payloads.StorageClassObserved(storage_class):
                volumes.storage_classes[storage_class.name] = storage_class
            case payloads.StorageClassDeleted(_, name):
                volumes.storage_classes.pop(name, None)
            case payloads.PodDisruptionBudgetObserved(budget):
                self.budgets[f"{budget.namespace}/{budget.name}"] = budget
            case payloads.PodDisruptionBudgetDeleted(_, namespace_name, name):
                self.budgets.pop(f"{namespace_name}/{name}", None)
            case _:
                self.devices.take(payload)

    # For snapshots.

    def restore(
        self,
        *,
        namespaces: Iterable[Namespace],
        claims: Iterable[PersistentVolumeClaim],
        volumes: Iterable[PersistentVolume],
        storage_classes: Iterable[StorageClass],
        budgets: Iterable[PodDisruptionBudget],
    ) -> None:
        """Put the facts back, before any pod."""
        for namespace in namespaces:
            self.take(payloads.NamespaceObserved(namespace))
        self.volumes.claims = {claim.key: claim for claim in claims}
        for volume in volumes:
            self.volumes.volume_seen(volume)
        self.volumes.storage_classes = {item.name: item for item in storage_classes}
        self.budgets = {f"{budget.namespace}/{budget.name}": budget for budget in budgets}

    def _promise(self, uid: str, volumes: dict[str, str]) -> bool:
        before = self._promised.get(uid, {})
        if before == volumes:
            return False
        supply = self._columns.volumes
        for names, sign in ((before.values(), -1), (volumes.values(), 1)):
            for name in names:
                supply.promise(name, sign=sign)
        if volumes:
            self._promised[uid] = volumes
        else:
            del self._promised[uid]
        return True

    def _remark_all(self, uids: Iterable[str]) -> None:
        for uid in uids:
            if uid in self._entries:
                self.remark(self._entries[uid])

    def _marks(self, entry: PodEntry) -> tuple[str, ...]:
        pod = entry.pod
        selected = self._index.marks_while(pod.uid, terminating=entry.releasing)
        if pod.rules is None and not pod.claims:
            return selected
        carried = carried_marks(pod.rules) if pod.rules is not None else ()
        claims = tuple(claim_keys(pod))
        return (*selected, *carried, *map(claim_mark, claims), *map(settled_mark, claims))
