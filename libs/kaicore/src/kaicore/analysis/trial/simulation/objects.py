"""Objects of any kinds as a world that can be simulated: API server defaults are added, and owners become pods.

The result depends neither on the order of the objects nor on their origin.

Owners that have pods or other owned objects in the input generate none. Suspended owners are read with and without
suspension. Readers of plain JSON get objects without their invalid parts.

Manifests from design documents, which no API server accepts, are read as intended, with a warning.

Sources: the example manifests of Volcano's design of network topologies (Jobs of `topology.volcano.sh`, members of
HyperNodes by `name` and `type`) and of Koordinator's documentation (kinds in small letters, a gang's groups as a list).
"""

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import msgspec

from kaicore.analysis.trial.simulation import resource_claims
from kaicore.analysis.trial.simulation import world as worlds
from kaicore.analysis.trial.simulation.kubelets import topology_object
from kaicore.analysis.trial.simulation.manifest_text import GroupKind, Identities, Located, located
from kaicore.analysis.trial.simulation.validation import OddFields, is_built_in, validate
from kaicore.errors import AbsurdQuantity, InvalidObject, Lost
from kaicore.kube.kinds import table
from kaicore.kube.kinds.kind import Kind
from kaicore.kube.kinds.table import group_kind, queue_kind, topology_kind
from kaicore.kube.normalize.pod import normalize_pod, read_constraints
from kaicore.rules.engine.constraints.node_matching import affine, selected, tolerates
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.groups.dialects.table import OWNER_KINDS, expand, is_owner, workload_of
from kaicore.rules.groups.koordinator import GANG
from kaicore.rules.groups.labels import KUEUE_QUEUE_LABEL
from kaicore.rules.groups.membership import membership
from kaicore.rules.model import placement
from kaicore.rules.model.group import GroupSource, GroupTemplate, PodSet
from kaicore.rules.model.node import Node, NodeTopology
from kaicore.rules.objects.made import Made
from kaicore.rules.objects.mappings import Object, derived_uid, group_of
from kaicore.rules.objects.wire import KubernetesObject, seconds, subject_of


class OwnersWithChildren:
    """The owners that have dependents in the input."""

    def __init__(self, objects: Sequence[Located]) -> None:
        self._uids: dict[tuple[str, str, str, str], set[str]] = {}
        for item in objects:
            metadata = item.object["metadata"]
            references = metadata.get("ownerReferences")
            for reference in references if isinstance(references, list) else ():
                if not isinstance(reference, dict):
                    continue
                key = (
                    group_of(str(reference.get("apiVersion", ""))),
                    str(reference.get("kind", "")),
                    str(metadata["namespace"]),
                    str(reference.get("name", "")),
                )
                self._uids.setdefault(key, set()).add(str(reference.get("uid", "")))

    def include(self, owner: Object) -> bool:
        """True if an object names this one as its owner; a person does not write a derived uid."""
        metadata = owner["metadata"]
        kind = group_of(owner["apiVersion"]), owner["kind"]
        uids = self._uids.get((*kind, metadata["namespace"], metadata["name"]))
        if uids is None:
            return False
        derived = derived_uid(*kind, metadata["namespace"], metadata["name"])
        return metadata["uid"] == derived or "" in uids or metadata["uid"] in uids


def resumed(owner: Object) -> Object:
    """Return an owner as it is when it is resumed; the owner itself where it is not suspended."""
    workload = workload_of(owner)
    path = workload.suspend if workload is not None else None
    if path is None or _spec(owner, path).get("suspend") is not True:
        return owner
    running = copy.deepcopy(owner)
    _spec(running, path)["suspend"] = False
    return running


def kueue_queue(owner: Object) -> str:
    """Return Kueue's LocalQueue that is to resume an owner; empty where it is not Kueue that does."""
    labels = owner["metadata"].get("labels")
    return str(labels.get(KUEUE_QUEUE_LABEL, "")) if isinstance(labels, dict) else ""


def _spec(owner: Object, path: tuple[str, ...]) -> Object:
    part = owner.get("spec")
    for name in path:
        part = part.get(name) if isinstance(part, dict) else None
    return part if isinstance(part, dict) else {}


_encoder = msgspec.json.Encoder()

_GROUPS = f"{GANG}/groups"
_DRAFT_GROUP, _SERVED_JOB = "topology.volcano.sh", "batch.volcano.sh/v1alpha1"


def as_served(item: Located) -> tuple[Located, Sequence[str]]:
    """Return an object as an API server would take it, and a warning for each thing that it would have refused.

    Args:
        item: an object with texts as apiVersion and kind; it is not changed.
    """
    warnings: list[str] = []
    wire = item.object
    if wire["apiVersion"] == "v1" and wire["kind"] in ("pod", "node"):
        warnings.append(f"kind {wire['kind']} is read as {wire['kind'].title()}")
        wire = {**wire, "kind": wire["kind"].title()}
    if (group_of(wire["apiVersion"]), wire["kind"]) == (_DRAFT_GROUP, "Job"):
        warnings.append(f"a Job of {wire['apiVersion']} is read as one of {_SERVED_JOB}")
        wire = {**wire, "apiVersion": _SERVED_JOB}
    wire = _with_texts(wire, warnings)
    if (group_of(wire["apiVersion"]), wire["kind"]) == (_DRAFT_GROUP, "HyperNode"):
        wire = _with_selectors(wire, warnings)
    name = wire["metadata"].get("name") if isinstance(wire.get("metadata"), dict) else None
    about = f"{item.where}: {wire['kind']} {name}" if isinstance(name, str) else item.where
    return Located(item.where, wire), [f"{about}: {said}; an API server takes no such thing" for said in warnings]


def _with_texts(wire: Object, warnings: list[str]) -> Object:
    """Make the list of a gang's groups into a text; other annotations that are no texts are faults."""
    metadata = wire.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    if not isinstance(metadata, dict) or not isinstance(annotations, dict):
        return wire
    groups = annotations.get(_GROUPS)
    if not isinstance(groups, list):
        return wire
    warnings.append(f"metadata.annotations[{_GROUPS}] is a list, and is read as text")
    texts = {**annotations, _GROUPS: _encoder.encode(groups).decode()}
    return {**wire, "metadata": {**metadata, "annotations": texts}}


def _with_selectors(wire: Object, warnings: list[str]) -> Object:
    """Make members of a HyperNode that have a name into members with a selector."""
    spec = wire.get("spec")
    members = spec.get("members") if isinstance(spec, dict) else None
    if not isinstance(spec, dict) or not isinstance(members, list):
        return wire
    selected = [_with_selector(member) for member in members]
    if selected == members:
        return wire
    warnings.append("members by name are read as members with selector.exactMatch.name")
    return {**wire, "spec": {**spec, "members": selected}}


def _with_selector(member: Any) -> Any:
    if not isinstance(member, dict) or "selector" in member or not isinstance(member.get("name"), str):
        return member
    others = {key: value for key, value in member.items() if key != "name"}
    return {**others, "selector": {"exactMatch": {"name": member["name"]}}}


#: Every kind that is recorded, by group and kind.
_TABLE: dict[GroupKind, Kind[Any]] = {(kind.resource.group, kind.name.partition(".")[0]): kind for kind in table.KINDS}

#: Kinds that are left out for a reason of their own.
_LEFT_OUT = {
    ("batch", "CronJob"): "it makes its Jobs later; give those",
    ("", "PodTemplate"): "no controller makes pods of it",
}

_RUNTIME_CLASS = ("node.k8s.io", "RuntimeClass")

_JSON = msgspec.json.Encoder(order="deterministic")


def read_world(
    objects: Iterable[Located], *, scheduler_name: str, most_pods: int | None = None, gpu_sharing: bool = False
) -> worlds.World:
    """Make a world of objects; what is wrong with them is collected in `World.problems`.

    Args:
        objects: the objects, in any order.
        scheduler_name: `spec.schedulerName` of pods that name none.
        most_pods: how many pods owners may make in all; the owner with which it is more is a problem, and all after it.
        gpu_sharing: virtual GPUs become shares, as by the admission webhook.
    """
    return _Reader(scheduler_name, most_pods, gpu_sharing=gpu_sharing).read(list(objects))


def is_read(api_version: str, kind: str) -> bool:
    """True if a simulation makes anything of objects of a kind."""
    key = group_of(api_version), kind
    return key in _TABLE or key in (_RUNTIME_CLASS, resource_claims.TEMPLATE_KIND) or is_owner(api_version, kind)


def _is_namespaced(kind: GroupKind) -> bool:
    row = _TABLE.get(kind)
    return kind != _RUNTIME_CLASS and (row is None or row.resource.namespaced)


class _Reader:
    def __init__(self, scheduler_name: str, most_pods: int | None, *, gpu_sharing: bool) -> None:
        self._gpu_sharing = gpu_sharing
        self._scheduler_name = scheduler_name
        self._most_pods = most_pods
        #: How many pods owners have made, those included that were too many.
        self._made = 0
        self._world = worlds.World()
        self._identities = Identities()
        self._admission = resource_claims.Admission(scheduler_name, (), ())
        self._odd = OddFields()
        self._runtime_classes: list[Object] = []
        self._columns = NodeColumns()
        self._sources: dict[str, GroupSource] = {}
        #: Where something is wrong already.
        self._wrong: set[str] = set()

    def read(self, objects: list[Located]) -> worlds.World:
        world = self._world
        identified = self._identities.identify(self._sorted_out(objects), _is_namespaced)
        world.problems += self._identities.problems
        for _, item in identified:
            self._attempt(item, self._validate)
        for kind, item in identified:
            if kind == ("", "Node"):
                self._attempt(item, self._add_node)
            elif kind == ("topology.node.k8s.io", "NodeResourceTopology"):
                self._attempt(item, self._add_topology)
            elif kind == ("scheduling.k8s.io", "PriorityClass"):
                self._attempt(item, self._add_priority_class)
            elif kind in worlds.KINDS:
                self._attempt(item, self._add_surrounding)
            elif kind == resource_claims.TEMPLATE_KIND:
                world.surroundings.claim_templates.add(item.object)
            elif kind == _RUNTIME_CLASS:
                self._runtime_classes.append(item.object)
        for kind, item in identified:
            if kind == resource_claims.POD_GROUP_KIND:
                self._attempt(item, lambda item: world.surroundings.add_group(item.object))
        namespaces = world.surroundings.namespaces()
        classes = world.priority_classes.values()
        self._admission = resource_claims.Admission(
            self._scheduler_name, classes, self._runtime_classes, namespaces, gpu_sharing=self._gpu_sharing
        )
        pods = [item for kind, item in identified if kind == ("", "Pod")]
        for item in pods:
            self._attempt(item, self._add_pod)
        owners = [item for kind, item in identified if is_owner(item.object["apiVersion"], kind[1])]
        owners_with_children = OwnersWithChildren([*pods, *owners])
        for item in owners:
            if not owners_with_children.include(item.object):
                self._attempt(item, self._add_pods_of)
        for kind, item in identified:
            if group_kind(item.object["apiVersion"], kind[1]) is not None:
                self._attempt(item, self._add_group_source)
            elif (queue := queue_kind(item.object["apiVersion"], kind[1])) is not None:
                self._attempt(item, partial(self._add_to, world.queues, queue))
            elif (topology := topology_kind(item.object["apiVersion"], kind[1])) is not None:
                self._attempt(item, partial(self._add_to, world.network_topologies, topology))
        world.group_sources.sort(key=lambda one: (one[0].name, one[1].metadata.namespace, one[1].metadata.name))
        world.network_topologies.sort(key=lambda one: (one[0].name, one[1].metadata.name))
        world.queues.sort(key=lambda one: (one[0].name, one[1].metadata.namespace, one[1].metadata.name))
        world.pods.sort(key=lambda pod: (pod.wire.metadata.namespace, pod.wire.metadata.name))
        self._warn_of_strays()
        self._warn_of_missing_templates()
        self._make_up_owners()
        times = self._times()
        world.now = max(times) + 1_000_000 if times else worlds.NO_TIMES
        world.pods = [worlds.created(pod, now=world.now) for pod in world.pods]
        world.warnings += self._admission.warnings() + self._odd.warnings()
        return world

    def _attempt(self, item: Located, add: Callable[[Located], None]) -> None:
        """Do something with an object unless something was wrong with it before."""
        if item.where in self._wrong:
            return
        try:
            add(item)
        except InvalidObject as error:
            self._wrong.add(item.where)
            self._world.problems.append(located(item.where, error))

    def _add_faults(self, where: str, faults: Sequence[InvalidObject]) -> None:
        if faults:
            self._wrong.add(where)
            self._world.problems += [located(where, fault) for fault in faults]

    def _validate(self, item: Located) -> None:
        about = item.object["metadata"]
        subject = subject_of(item.object["kind"], about["namespace"], about["name"])
        validation = validate(item.object, subject=subject)
        for path, odd in validation.odd:
            self._odd.add(item.where, subject, path, odd)
        self._add_faults(item.where, validation.faults)

    def _sorted_out(self, objects: list[Located]) -> list[tuple[GroupKind, Located]]:
        """Leave out what no simulation needs, with one warning for each kind."""
        known_kinds = []
        others: Counter[tuple[str, str]] = Counter()
        for drafted in objects:
            item, drafts = as_served(drafted)
            self._world.warnings += drafts
            api_version, kind = item.object["apiVersion"], item.object["kind"]
            key = group_of(api_version), kind
            if is_read(api_version, kind):
                known_kinds.append((key, item))
            else:
                others[key] += 1
        for (group, kind), count in sorted(others.items()):
            name = f"{kind}.{group}" if group else kind
            why = _LEFT_OUT.get((group, kind), "it says nothing to this scheduler")
            self._world.warnings.append(f"skipped {count} {name}: {why}")
        return known_kinds

    def _add_node(self, item: Located) -> None:
        node = resource_claims.admitted_node(item.object)
        wire = table.NODE.decode(_JSON.encode(node))
        model = table.NODE.normalize(wire, self._lost_at(item))
        assert isinstance(model, Node)
        self._columns.set_node(model, self._columns.row(model.name))
        self._world.nodes[model.name] = node, wire

    def _add_topology(self, item: Located) -> None:
        wire = table.TOPOLOGY.decode(_JSON.encode(item.object))
        before = len(self._world.warnings)
        model = table.TOPOLOGY.normalize(wire, self._lost_at(item))
        assert isinstance(model, NodeTopology)
        spoiled = len(self._world.warnings) > before
        self._world.topologies[model.node] = topology_object(model) if spoiled else item.object, wire

    def _add_priority_class(self, item: Located) -> None:
        wire = table.PRIORITY_CLASS.decode(_JSON.encode(item.object))
        table.PRIORITY_CLASS.normalize(wire, self._lost_at(item))
        self._world.priority_classes[wire.metadata.name] = wire

    def _add_surrounding(self, item: Located) -> None:
        wire = item.object
        self._world.surroundings.add((group_of(wire["apiVersion"]), wire["kind"]), wire, self._lost_at(item))

    def _add_pod(self, item: Located) -> None:
        pod, made = self._world.surroundings.claim_templates.make(self._admission.pod(item.object))
        wire = table.POD.decode(_JSON.encode(pod))
        subject = subject_of("Pod", wire.metadata.namespace, wire.metadata.name)
        if normalize_pod(wire, self._lost_at(item)).malformed:
            read_constraints(wire)
        annotations = wire.metadata.annotations or {}
        predicted, observed = (
            self._placement(item, annotations.get(name), subject=subject, annotation=name, groups=groups)
            for name, groups in (
                (placement.PREDICTED_ANNOTATION, annotations.get(placement.MEMORY_GROUPS_PREDICTED, "")),
                (placement.OBSERVED_ANNOTATION, annotations.get(placement.MEMORY_GROUPS_OBSERVED, "")),
            )
        )
        for claim in worlds.ephemeral_claims(pod):
            self._world.surroundings.add_made(claim)
        for claim in made:
            self._world.surroundings.add(resource_claims.RESOURCE_CLAIM_KIND, claim)
        self._world.pods.append(worlds.WorldPod(item.where, pod, wire, predicted, observed))

    def _placement(
        self, item: Located, text: str | None, *, subject: str, annotation: str, groups: str
    ) -> placement.ContainerPlacement | None:
        """Return a placement record; none, and a warning, where it is malformed, as in a running cluster."""
        if text is None:
            return None
        try:
            return placement.decode_annotation(text, subject=subject, annotation=annotation, groups=groups)
        except InvalidObject as error:
            self._world.warnings.append(f"{item.where}: {error}; the placement is not believed")
            return None

    def _lost_at(self, item: Located) -> Lost:
        """Return the receiver of reports on an object's senseless parts, left out as in a running cluster."""

        def lost(error: InvalidObject) -> None:
            line = f"{item.where}: {error}; it is left out"
            if isinstance(error, AbsurdQuantity):
                line = f"{item.where}: {error}; taken for that much"
            if line not in self._world.warnings:
                self._world.warnings.append(line)

        return lost

    def _add_pods_of(self, item: Located) -> None:
        owner = resumed(item.object)
        metadata = owner["metadata"]
        subject = subject_of(owner["kind"], metadata["namespace"], metadata["name"])
        between: list[Object] = []
        pods: list[Made] = []

        def on_the_way(made: Object) -> None:
            between.append(made)
            self._check_made(subject, len(between))

        self._check_made(subject, self._made)
        for made in expand(owner, nodes_for=self._nodes_for, between=on_the_way):
            self._made += 1
            self._check_made(subject, self._made, made.spec_field)
            pods.append(made)
        if owner is not item.object and pods:
            queue, count = kueue_queue(owner), _pods(len(pods))
            done = f"{count} shown as if LocalQueue {queue} admitted it" if queue else f"{count} left out"
            self._world.warnings.append(f"{item.where}: {subject}: is suspended: {done}")
            if not queue:
                return
        for made in pods:
            about = made.object["metadata"]
            first = self._identities.seen.setdefault(("", "Pod", about["namespace"], about["name"]), item)
            if first is not item:
                owned = f"{owner['kind']} {about['namespace']}/{owner['metadata']['name']}"
                name = about["name"]
                self._world.warnings.append(
                    f"{owned} cannot make its pod {name}: one is there already, in {first.where}"
                )
                continue
            try:
                # The template of one that is built in was looked at with it.
                if not is_built_in(owner):
                    validation = validate(made.object, subject=subject)
                    for path, odd in validation.odd:
                        self._odd.add(item.where, subject, made.field_in_owner(path), odd)
                    if validation.faults:
                        # One pod tells what is wrong with all of them.
                        faults = [_in_owner(made, fault, subject) for fault in validation.faults]
                        self._add_faults(item.where, faults)
                        return
                for claim in worlds.template_claims(owner, made.object):
                    self._world.surroundings.add_made(claim)
                self._add_pod(Located(item.where, made.object))
            except InvalidObject as error:
                raise _in_owner(made, error, subject) from error
        for one in between:
            if group_kind(one["apiVersion"], one["kind"]) is not None:
                self._add_group_source(Located(item.where, one))

    def _check_made(self, subject: str, made: int, field: str = "spec") -> None:
        """Refuse what stands for too much before all of it is made: some lines can stand for 10 billion pods."""
        if self._most_pods is not None and made > self._most_pods:
            raise InvalidObject(subject, field, made, f"more than {self._most_pods} pods are made in all")

    def _add_group_source(self, item: Located) -> None:
        kind = group_kind(item.object["apiVersion"], item.object["kind"])
        assert kind is not None
        wire = kind.decode(_JSON.encode(item.object))
        source = kind.normalize(wire, self._lost_at(item))
        assert isinstance(source, GroupSource)
        self._sources[source.key] = source
        self._world.group_sources.append((kind, wire))

    def _add_to(self, world: list[tuple[Kind[Any], Any]], kind: Kind[Any], item: Located) -> None:
        wire = kind.decode(_JSON.encode(item.object))
        kind.normalize(wire, self._lost_at(item))
        world.append((kind, wire))

    def _make_up_owners(self) -> None:
        """Stand in for owners of unfinished pods that are not in the input, for nothing more will come."""
        missing: dict[str, GroupSource] = {}
        lost: Counter[str] = Counter()
        for pod in self._world.pods:
            model = normalize_pod(pod.wire)
            if model.finished:
                continue
            place = membership(model, lambda key: self._sources.get(key) or missing.get(key))
            kind, namespace, name = (*place.source.split("/", 2), "", "")[:3]
            if place.source in missing:
                lost[place.source] += 1
            elif place.problem and kind in OWNER_KINDS and place.source not in self._sources:
                lost[place.source] += 1
                uid = model.owner.uid if model.owner is not None else ""
                one_by_one = (GroupTemplate(sets=(PodSet(min_pods=1),)),)
                missing[place.source] = GroupSource(kind, uid, namespace, name, "", templates=one_by_one)
        self._world.missing_owners = [missing[key] for key in sorted(missing)]
        for key, count in sorted(lost.items()):
            self._world.warnings.append(f"{_pods(count)} of {key}, which is not given: taken to start one by one")

    def _nodes_for(self, pod: Object) -> list[str]:
        model = normalize_pod(table.POD.decode(_JSON.encode(pod)))
        suited = selected(self._columns, model.node_selector) & affine(self._columns, model.node_affinity)
        return sorted(
            node.name
            for row, node in enumerate(self._columns.facts)
            if node is not None and suited[row] and all(tolerates(model.tolerations, taint) for taint in node.taints)
        )

    def _warn_of_strays(self) -> None:
        world = self._world
        for name in sorted(world.topologies.keys() - world.nodes.keys()):
            world.warnings.append(f"NodeResourceTopology {name}: there is no Node of this name")
        lost = Counter(pod.wire.spec.node_name for pod in world.pods if pod.wire.spec.node_name)
        for node, count in sorted(lost.items()):
            if node not in world.nodes:
                world.warnings.append(f"{_pods(count)} on {node}, and there is no Node of this name")

    def _warn_of_missing_templates(self) -> None:
        world, missing = self._world, Counter[tuple[str, str]]()
        for pod in world.pods:
            if not normalize_pod(pod.wire).finished:
                missing.update(set(world.surroundings.claim_templates.missing(pod.object)))
        for (namespace, name), count in sorted(missing.items()):
            world.warnings.append(
                f"{_pods(count)} to get a claim of ResourceClaimTemplate {namespace}/{name}, which is not given: "
                f"give the output of `kubectl get resourceclaimtemplate {name} -n {namespace} -o yaml` too"
            )

    def _times(self) -> list[int]:
        objects: list[KubernetesObject] = [wire for _, wire in self._world.nodes.values()]
        objects += [pod.wire for pod in self._world.pods]
        times = [one.metadata.creation_timestamp for one in objects]
        times += [pod.wire.status.start_time for pod in self._world.pods]
        return [moment * 1_000_000 for time in times if (moment := seconds(time)) is not None]


def _in_owner(made: Made, error: InvalidObject, subject: str) -> InvalidObject:
    return InvalidObject(subject, made.field_in_owner(error.field), error.value, error.problem)


def _pods(count: int) -> str:
    return "1 pod is" if count == 1 else f"{count} pods are"
