"""Rules between pods, and the other objects of the cluster that constrain pods.

Namespaces, volumes and disruption budgets come from facts. The live pods that each selection selects, and the marks
that charged pods leave on their nodes (`kaicore.rules.engine.constraints.pod_marks`), are kept up to date pod by pod.
Only selections that some class uses are known, so without such rules this costs next to nothing. A selection that names
values of a label looks only at pods with these values, and a pod only at selections that name its values.

Source of the effect of claims, volumes and storage classes: kube-scheduler's plugins VolumeBinding, VolumeZone and
VolumeRestrictions.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

import msgspec

from kaicore.rules.engine.constraints import pod_marks
from kaicore.rules.engine.constraints.claims.demands import (
    ANY_FLAVOR,
    NO_DEVICES,
    FlavorDemand,
    Terms,
    VolumeDemand,
    WantedVolume,
    volume_places,
)
from kaicore.rules.engine.constraints.claims.supplies import VolumeSupply
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.placement.pod_class import PodClass, variant
from kaicore.rules.events import payloads
from kaicore.rules.model.pod import ClaimUse, Namespace, Pod, PodDisruptionBudget
from kaicore.rules.model.selector import PodSelector, Requirement, Selection, meets
from kaicore.rules.model.volume import PersistentVolume, PersistentVolumeClaim, StorageClass
from kaicore.rules.state.pods.pod_entry import EMPTY, PodEntry
from kaicore.rules.state.registries.device_registry import (
    DEVICE_FACTS,
    ClaimUsers,
    DeviceRegistry,
    resource_claim_keys,
)


class SelectionIndex:
    """Selections by mark, pods by uid."""

    def __init__(self) -> None:
        self._selections: dict[str, Selection] = {}
        self._users: dict[str, int] = {}
        self._pods: dict[str, Pod] = {}
        self._selected: dict[str, set[str]] = {}
        self._namespaces: dict[str, dict[str, str]] = {}
        #: Uids by the value of each label that some selection names values of.
        self._by_label: dict[str, dict[str, set[str]]] = {}
        #: Marks by label and value that pods must have; under None those that name no values.
        self._by_value: dict[tuple[str, str] | None, set[str]] = {}

    def marks_of(self, uid: str) -> tuple[str, ...]:
        """Return the marks of the selections that select a pod, sorted."""
        marks = self._selected.get(uid)
        return tuple(sorted(marks)) if marks else ()

    @property
    def selected(self) -> Mapping[str, Set[str]]:
        """The marks of the selections that select a pod, by its uid; pods that none selects are missing."""
        return self._selected

    def marks_while(self, uid: str, *, terminating: bool) -> tuple[str, ...]:
        """Return them without those that do not select terminating pods, if it is one."""
        marks = self.marks_of(uid)
        if not terminating:
            return marks
        return tuple(mark for mark in marks if not any(selector.living for selector in self._selections[mark]))

    def add_selection(self, selection: Selection) -> list[str]:
        """Know of a selection once more; return the uids of the pods that it now selects and did not before."""
        mark = pod_marks.selection_mark(selection)
        self._users[mark] = self._users.get(mark, 0) + 1
        if self._users[mark] > 1:
            return []
        self._selections[mark] = selection
        named = _named(selection)
        if named is not None:
            self._index(named.key)
        for place in _places(named):
            self._by_value.setdefault(place, set()).add(mark)
        uids = []
        for uid in self._candidates(named):
            if self._selects(selection, self._pods[uid]):
                self._selected.setdefault(uid, set()).add(mark)
                uids.append(uid)
        return uids

    def remove_selection(self, selection: Selection) -> list[str]:
        """Forget a selection once; return the uids of the pods that it no longer selects."""
        mark = pod_marks.selection_mark(selection)
        self._users[mark] -= 1
        if self._users[mark]:
            return []
        del self._users[mark], self._selections[mark]
        named = _named(selection)
        for place in _places(named):
            self._by_value[place].discard(mark)
            if not self._by_value[place]:
                del self._by_value[place]
        uids = []
        for uid in self._candidates(named):
            marks = self._selected.get(uid)
            if marks is not None and mark in marks:
                uids.append(uid)
                self._drop(uid, mark)
        return uids

    def set_pod(self, pod: Pod) -> bool:
        """Know of a pod, new or changed; return whether it is selected otherwise than before."""
        before = self._pods.get(pod.uid)
        if before is not None and before.labels == pod.labels:
            self._pods[pod.uid] = pod
            return False
        old = self._selected.pop(pod.uid, set())
        if before is not None:
            self._unindex(before)
        self._pods[pod.uid] = pod
        for key, by_value in self._by_label.items():
            if key in pod.labels:
                by_value.setdefault(pod.labels[key], set()).add(pod.uid)
        if not self._selections:
            return bool(old)
        marks = {mark for mark in self._candidate_marks(pod) if self._selects(self._selections[mark], pod)}
        if marks:
            self._selected[pod.uid] = marks
        return marks != old

    def replace_pod(self, pod: Pod) -> None:
        """Have a pod with the same labels, if it is known."""
        if pod.uid in self._pods:
            self._pods[pod.uid] = pod

    def remove_pod(self, uid: str) -> None:
        """Forget a pod."""
        pod = self._pods.pop(uid, None)
        if pod is not None:
            self._selected.pop(uid, None)
            self._unindex(pod)

    def set_namespace(self, name: str, labels: dict[str, str] | None) -> list[str]:
        """Know of a namespace's labels, or of its end; return the uids of pods that are selected otherwise now."""
        if self._namespaces.get(name) == labels:
            return []
        if labels is None:
            self._namespaces.pop(name, None)
        else:
            self._namespaces[name] = labels
        watching = [
            mark
            for mark, selection in self._selections.items()
            if any(selector.namespace_labels is not None for selector in selection)
        ]
        changed = []
        for uid, pod in self._pods.items() if watching else ():
            if pod.namespace != name:
                continue
            before = set(self._selected.get(uid, ()))
            for mark in watching:
                if self._selects(self._selections[mark], pod):
                    self._selected.setdefault(uid, set()).add(mark)
                else:
                    self._drop(uid, mark)
            if self._selected.get(uid, set()) != before:
                changed.append(uid)
        return changed

    def _selects(self, selection: Selection, pod: Pod) -> bool:
        return all(self.meets(selector, pod) for selector in selection)

    def meets(self, selector: PodSelector, pod: Pod) -> bool:
        """Tell whether a selector selects a pod."""
        if selector.labels is None or not meets(pod.labels, selector.labels):
            return False
        if pod.namespace in selector.namespaces:
            return True
        # Of a namespace that was not observed, no label is known.
        of_namespace = selector.namespace_labels
        return of_namespace is not None and meets(self._namespaces.get(pod.namespace, {}), of_namespace)

    def _index(self, key: str) -> None:
        if key in self._by_label:
            return
        by_value: dict[str, set[str]] = {}
        for uid, pod in self._pods.items():
            if key in pod.labels:
                by_value.setdefault(pod.labels[key], set()).add(uid)
        self._by_label[key] = by_value

    def _unindex(self, pod: Pod) -> None:
        for key, by_value in self._by_label.items():
            value = pod.labels.get(key)
            if value is not None:
                by_value[value].discard(pod.uid)
                if not by_value[value]:
                    del by_value[value]

    def _candidates(self, named: Requirement | None) -> list[str]:
        if named is None:
            return list(self._pods)
        by_value = self._by_label[named.key]
        return [uid for value in named.values for uid in by_value.get(value, ())]

    def _candidate_marks(self, pod: Pod) -> Iterator[str]:
        yield from self._by_value.get(None, ())
        if self._by_value:
            for pair in pod.labels.items():
                yield from self._by_value.get(pair, ())

    def _drop(self, uid: str, mark: str) -> None:
        marks = self._selected.get(uid)
        if marks is not None:
            marks.discard(mark)
            if not marks:
                del self._selected[uid]


def _named(selection: Selection) -> Requirement | None:
    """Return the requirement of a selection that names the fewest values; None if it names none."""
    named = [item for selector in selection for item in selector.labels or () if item.operator == "In"]
    return min(named, key=lambda item: (len(item.values), item.key, item.values), default=None)


def _places(named: Requirement | None) -> Iterable[tuple[str, str] | None]:
    return (None,) if named is None else ((named.key, value) for value in named.values)


_NO_PROVISIONER = ("", "kubernetes.io/no-provisioner")
_ONE_POD = "ReadWriteOncePod"

_NOTHING = VolumeDemand()


class VolumeRegistry:
    """Everything about volumes, at one position of a cluster's log."""

    def __init__(self, supply: VolumeSupply) -> None:
        """Args: supply: is called with every volume."""
        #: By `namespace/name`.
        self.claims: dict[str, PersistentVolumeClaim] = {}
        self.volumes: dict[str, PersistentVolume] = {}
        self.storage_classes: dict[str, StorageClass] = {}
        self._supply = supply
        self.users = ClaimUsers()
        #: Names of the volumes that name a claim, by the claim.
        self._kept: dict[str, set[str]] = {}

    def volume_seen(self, volume: PersistentVolume) -> None:
        """A volume is new or changed."""
        self.volume_gone(volume.name)
        self.volumes[volume.name] = volume
        self._supply.set_volume(volume)
        if volume.claim:
            self._kept.setdefault(volume.claim, set()).add(volume.name)

    def volume_gone(self, name: str) -> None:
        """A volume is no more."""
        before = self.volumes.pop(name, None)
        self._supply.forget(name)
        if before is not None and before.claim:
            kept = self._kept[before.claim]
            kept.discard(name)
            if not kept:
                del self._kept[before.claim]

    def demand(self, pod: Pod) -> VolumeDemand:
        """Return what the pod's volumes ask of its node."""
        if not pod.claims:
            return _NOTHING
        waits: list[str] = []
        places: dict[tuple[str, Terms], None] = {}
        exclusive: list[str] = []
        together: list[str] = []
        for use in pod.claims:
            key = f"{pod.namespace}/{use.name}"
            claim = self.claims.get(key)
            problem = self._problem(pod, use, claim)
            if problem or claim is None:
                waits.append(f"claim {use.name} {problem}")
                continue
            if _ONE_POD in claim.access_modes:
                exclusive.append(key)
            for place in self._places(claim):
                places[place] = None
            if self._is_shared(claim):
                together.append(key)
        wanted = () if waits else tuple(want for want, _ in self._wanted(pod))
        return VolumeDemand(tuple(waits), tuple(sorted(places)), tuple(exclusive), tuple(together), wanted)

    def unbound(
        self, pod: Pod, chosen: Sequence[str], promised: Mapping[str, str]
    ) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return which claims are to be provisioned for the node that a pod gets, and which volumes others get.

        Args:
            chosen: a volume's name for each that its demand wants, empty where none was chosen.
            promised: what other pods' claims get that it may use as well, by `namespace/name`.
        """
        chosen_by_claim = {claim.key: name for (_, claim), name in zip(self._wanted(pod), chosen, strict=True) if name}
        claims: list[str] = []
        volumes: dict[str, str] = {}
        for key in dict.fromkeys(claim_keys(pod)):
            claim = self.claims.get(key)
            if claim is None or claim.bound:
                continue
            kept = self._kept_for(claim)
            volume = chosen_by_claim.get(key) or promised.get(key) or (kept.name if kept is not None else "")
            if volume and not claim.selected_node:
                volumes[claim.name] = volume
            else:
                claims.append(claim.name)
        return tuple(claims), volumes

    def _problem(self, pod: Pod, use: ClaimUse, claim: PersistentVolumeClaim | None) -> str:
        """Say what keeps a claim from being used at all; empty for nothing."""
        if claim is None:
            return "is not made yet" if use.owned else "does not exist"
        if use.owned and claim.owner != pod.uid:
            return "was not made for this pod"
        if claim.deleting:
            return "is being deleted"
        if claim.lost:
            return "has lost its volume"
        if claim.bound:
            return "" if claim.volume in self.volumes else f"is bound to volume {claim.volume}, which does not exist"
        storage_class = self.storage_classes.get(claim.storage_class)
        if claim.volume or storage_class is None or not storage_class.waits:
            return "is not bound yet"
        return ""

    def _places(self, claim: PersistentVolumeClaim) -> Iterator[tuple[str, Terms]]:
        """Yield where a claim's volume can be used, as far as it is settled which one that is."""
        if claim.bound:
            yield from volume_places(self.volumes[claim.volume], what="a bound volume")
        elif claim.selected_node:
            chosen = Requirement("metadata.name", "In", (claim.selected_node,), field=True)
            yield "node that a volume is provisioned for", ((chosen,),)
            storage_class = self.storage_classes[claim.storage_class]
            if storage_class.topologies:
                yield f"topologies of storage class {storage_class.name}", storage_class.topologies
        elif (kept := self._kept_for(claim)) is not None:
            yield from volume_places(kept, what="a volume that is kept for its claim")

    def _wanted(self, pod: Pod) -> list[tuple[WantedVolume, PersistentVolumeClaim]]:
        """Return what a pod's open claims ask for, in the order in which they choose."""
        unbound: list[tuple[WantedVolume, PersistentVolumeClaim]] = []
        for key in dict.fromkeys(claim_keys(pod)):
            claim = self.claims.get(key)
            if claim is None or claim.bound or claim.selected_node or self._kept_for(claim) is not None:
                continue
            storage_class = self.storage_classes.get(claim.storage_class)
            if storage_class is not None:
                unbound.append((self._want(claim, storage_class), claim))
        return sorted(unbound, key=_choosing_order)

    def _want(self, claim: PersistentVolumeClaim, storage_class: StorageClass) -> WantedVolume:
        return WantedVolume(
            storage_class=claim.storage_class,
            request=claim.request,
            access_modes=claim.access_modes,
            volume_mode=claim.volume_mode,
            selector=claim.selector,
            provisioned=storage_class.provisioner not in _NO_PROVISIONER,
            topologies=storage_class.topologies,
            claim=claim.key if self._is_shared(claim) else "",
        )

    def _kept_for(self, claim: PersistentVolumeClaim) -> PersistentVolume | None:
        """Return the volume that names a claim, if it would do: the claim is bound to that one, wherever it is."""
        for name in sorted(self._kept.get(claim.key, ())):
            volume = self.volumes[name]
            if (
                volume.is_kept_for(claim)
                and not volume.deleting
                and (volume.storage_class, volume.volume_mode) == (claim.storage_class, claim.volume_mode)
                and volume.capacity >= claim.request
            ):
                return volume
        return None

    def _is_shared(self, claim: PersistentVolumeClaim) -> bool:
        """Tell whether the first of several pods decides where an open claim's volume will be."""
        return not claim.bound and not claim.selected_node and self.users.is_shared(claim.key)


def claim_keys(pod: Pod) -> Iterator[str]:
    """Yield the pod's claims as `namespace/name`."""
    for use in pod.claims:
        yield f"{pod.namespace}/{use.name}"


def _choosing_order(item: tuple[WantedVolume, PersistentVolumeClaim]) -> tuple[int, str, tuple[str, ...], str]:
    want, claim = item
    return want.request, want.storage_class, want.access_modes, claim.name


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
        columns: the columns that marks are kept for.
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
        for selection in pod_marks.selections(pod_class.rules):
            self._remark_all(self._index.add_selection(selection))

    def class_forgotten(self, pod_class: PodClass) -> None:
        """A class is no more."""
        self._variants.clear()
        self.devices.extended.asked_for(pod_class.requests, sign=-1)
        if pod_class.rules is None:
            return
        self._columns.marks.add_rules(pod_class.rules, sign=-1)
        for selection in pod_marks.selections(pod_class.rules):
            self._remark_all(self._index.remove_selection(selection))

    def pod_seen(self, pod: Pod) -> bool:
        """A pod is new or changed; return whether other selections select it than before."""
        if pod.finished:
            self.pod_gone(pod)
            return False
        if pod.claims:
            self.volumes.users.add(pod.uid, claim_keys(pod))
        if pod.resource_claims:
            self.devices.users.add(pod.uid, resource_claim_keys(pod))
        return self._index.set_pod(pod)

    def pod_seen_again(self, pod: Pod) -> None:
        """A known pod has another status, on which no selection depends."""
        self._index.replace_pod(pod)

    def pod_gone(self, pod: Pod) -> None:
        """A pod is no more, or finished."""
        if pod.claims:
            self.volumes.users.remove(pod.uid, claim_keys(pod))
        if pod.resource_claims:
            self.devices.users.remove(pod.uid, resource_claim_keys(pod))
        self._index.remove_pod(pod.uid)

    def remark(self, entry: PodEntry) -> bool:
        """Have a pod's marks and volumes where it is charged, and nowhere else; return whether anything changed."""
        uid, charged, promised = entry.pod.uid, entry.charged, False
        if uid in self._promised or (charged and entry.volumes):
            promised = self._promise(uid, entry.volumes if charged else {})
        promised |= self.devices.promise(entry.pod, entry.devices if charged else EMPTY)
        marks = self._marks(entry) if charged else ()
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
            chosen: a volume's name for each that its demand wants, empty where none was chosen.
            also: what the same cycle has given to claims that other pods may use as well, by `namespace/name`.

        Returns:
            names of those that are to be provisioned; and the volumes that others are to be bound to.
        """
        promised = dict(also)
        for key in claim_keys(pod):
            for uid in sorted(self.volumes.users.of(key)):
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

    @property
    def selected(self) -> Mapping[str, Set[str]]:
        """Pods that rules of other pods select, by uid."""
        return self._index.selected

    def variant(self, pod_class: PodClass, pod: Pod, flavors: FlavorDemand, *, again: bool) -> PodClass:
        """Return the variant of a class that a pod is of: see `kaicore.rules.engine.placement.pod_class.variant`.

        Args:
            again: as which the pod is decided on that takes its place.
        """
        selected = self._index.marks_of(pod.uid)
        uses_devices = pod.resource_claims or self.devices.extended.serves(pod_class.requests)
        if not selected and not pod.claims and flavors is ANY_FLAVOR and not uses_devices:
            return pod_class
        volumes, devices = self.volumes.demand(pod), self.devices.demand(pod, again=again)
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
        carried = pod_marks.carried_marks(pod.rules) if pod.rules is not None else ()
        claims = tuple(claim_keys(pod))
        return (*selected, *carried, *map(pod_marks.claim_mark, claims), *map(pod_marks.settled_mark, claims))
