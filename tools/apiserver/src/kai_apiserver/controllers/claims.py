"""Makes the resource claims of templates, names them in the pods' statuses, and releases claims that no pod uses.

As kube-controller-manager does (`pkg/controller/resourceclaim`). A claim made of a template is owned by its pod and
named after it. A pod that has ended, or is gone, is removed from `status.reservedFor`. A claim that no pod has, and
that was made for a pod or is to be deleted, loses its devices and its finalizer. Where a pod's PodGroup has the same
reference (`DRAWorkloadResourceClaims`, Kubernetes 1.37), the claim is made once, for the PodGroup, which names it in
its status, too.

Claims of volumes are bound to the volumes with their `spec.claimRef`. Nothing chooses a volume for a claim here and
nothing provisions any: schedulers, users and tests write `claimRef`.
"""

from collections.abc import Callable

from kaicore.rules.objects.mappings import controlled_by

from kai_apiserver.controllers.nodes import claim_names
from kai_apiserver.controllers.reconciling import Controller
from kai_apiserver.objects import Object, key_of
from kai_apiserver.resources.registry import ResourceType
from kai_apiserver.rest.backend import Backend
from kai_apiserver.store import Event, EventType, Stored

PODS, POD_GROUPS = "pods", "podgroups.scheduling.k8s.io"
CLAIMS, TEMPLATES = "resourceclaims.resource.k8s.io", "resourceclaimtemplates.resource.k8s.io"
FINALIZER = "resource.kubernetes.io/delete-protection"
#: On a claim: by which name its pod calls it.
POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"

_ENDED = ("Succeeded", "Failed")
_KINDS = ("Pod", "PodGroup")


class ResourceClaimController(Controller[str]):
    """Reconciles pods with claims (`pod/…`), PodGroups with claims (`group/…`) and claims (`claim/…`), by key."""

    name = "resource-claim-controller"

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self._pod_resource = backend.registry.find("", "v1", plural="pods")
        self._claim_resource = backend.registry.find("resource.k8s.io", "v1", plural="resourceclaims")
        #: What is to be looked at again when a template or a PodGroup changes, by the key of that.
        self._lacking: dict[str, set[str]] = {}

    def begin(self) -> None:
        """Look at every pod and every claim."""
        for stored in self.backend.store.collection(PODS):
            self._pod_seen(stored)
        for stored in self.backend.store.collection(CLAIMS):
            self.queue(f"claim/{stored.key}")
        for stored in self.backend.store.find_collection(POD_GROUPS) or ():
            self._group_seen(stored)
        self.backend.store.follow(PODS, lambda event: self._pod_seen(event.stored))
        self.backend.store.follow(CLAIMS, lambda event: self.queue(f"claim/{event.stored.key}"))
        self.backend.store.follow(TEMPLATES, lambda event: self._look_again(f"template/{event.stored.key}"))
        self.backend.store.follow(POD_GROUPS, self._group_changed)

    def _pod_seen(self, stored: Stored) -> None:
        if b'"resourceClaims"' in stored.body or b'"extendedResourceClaimStatus"' in stored.body:
            self.queue(f"pod/{stored.key}")
            for name in claim_names(stored.decode()):
                self.queue(f"claim/{stored.namespace}/{name}")

    def _look_again(self, lacked: str) -> None:
        for key in sorted(self._lacking.pop(lacked, ())):
            self.queue(key)

    def _group_changed(self, event: Event) -> None:
        self._group_seen(event.stored)
        self._look_again(f"group/{event.stored.key}")

    def _group_seen(self, stored: Stored) -> None:
        if b'"resourceClaims"' in stored.body:
            self.queue(f"group/{stored.key}")
            group = stored.decode()
            for one in (*_references(group), *_made(group)):
                if one.get("resourceClaimName"):
                    self.queue(f"claim/{stored.namespace}/{one['resourceClaimName']}")

    def reconcile(self, key: str) -> float | None:
        """Bring the claims of one pod or PodGroup, or one claim, into the state they should be in."""
        kind, _, name = key.partition("/")
        if kind == "pod":
            self._reconcile_pod(name)
        elif kind == "group":
            self._reconcile_group(name)
        else:
            self._reconcile_claim(name)
        return None

    # Pods.

    def _reconcile_pod(self, key: str) -> None:
        stored = self.backend.store.collection(PODS).get(key)
        if stored is None:
            return
        pod = stored.decode()
        if pod["metadata"].get("deletionTimestamp") or pod.get("status", {}).get("phase") in _ENDED:
            return
        self._name_claims(pod, stored, resource=self._pod_resource, claim_of=self._claim_of_pod)

    def _reconcile_group(self, key: str) -> None:
        collection = self.backend.store.find_collection(POD_GROUPS)
        stored = None if collection is None else collection.get(key)
        if collection is None or stored is None or stored.decode()["metadata"].get("deletionTimestamp"):
            return
        self._name_claims(stored.decode(), stored, resource=collection.resource, claim_of=self._claim_of)

    def _name_claims(
        self, owner: Object, stored: Stored, *, resource: ResourceType, claim_of: Callable[[Object, str, str], str]
    ) -> None:
        """Have the claims of a pod's or a PodGroup's templates, and name them in its status."""
        statuses = {one["name"]: one for one in _made(owner)}
        for reference in _references(owner):
            template = reference.get("resourceClaimTemplateName")
            if template and reference["name"] not in statuses:
                claim = claim_of(owner, reference["name"], template)
                if claim:
                    statuses[reference["name"]] = {"name": reference["name"], "resourceClaimName": claim}
        made = [statuses[name] for name in sorted(statuses)]
        if made != _made(owner):
            owner.setdefault("status", {})["resourceClaimStatuses"] = made
            self.backend.write_status(resource, owner, stored)

    def _claim_of_pod(self, pod: Object, name: str, template_name: str) -> str:
        """Return the name of a pod's claim, its PodGroup's where that has the same reference; empty for none yet."""
        group_name = (pod["spec"].get("schedulingGroup") or {}).get("podGroupName")
        groups = self.backend.store.find_collection(POD_GROUPS)
        if not group_name or groups is None:
            return self._claim_of(pod, name, template_name)
        key = f"{pod['metadata']['namespace']}/{group_name}"
        stored = groups.get(key)
        group = {} if stored is None else stored.decode()
        same = [one for one in _references(group) if one["name"] == name]
        if stored is not None and template_name not in [one.get("resourceClaimTemplateName") for one in same]:
            return self._claim_of(pod, name, template_name)
        claim = next((one.get("resourceClaimName", "") for one in _made(group) if one["name"] == name), "")
        if not claim:
            self._lacking.setdefault(f"group/{key}", set()).add(f"pod/{key_of(pod)}")
        return str(claim)

    def _claim_of(self, owner: Object, name: str, template_name: str) -> str:
        """Return the name of the claim of a pod or PodGroup, made if need be; empty where there is no template."""
        metadata = owner["metadata"]
        namespace, uid = metadata["namespace"], metadata["uid"]
        for stored in self.backend.all_of(CLAIMS):
            claim = stored.decode()["metadata"]
            if (
                _controller_of(claim, *_KINDS).get("uid") == uid
                and (claim.get("annotations") or {}).get(POD_CLAIM_NAME) == name
            ):
                return str(claim["name"])
        template = self.backend.find(TEMPLATES, f"{namespace}/{template_name}")
        is_pod = "containers" in owner["spec"]
        if template is None:
            key = f"{'pod' if is_pod else 'group'}/{key_of(owner)}"
            self._lacking.setdefault(f"template/{namespace}/{template_name}", set()).add(key)
            return ""
        wanted = template["spec"]
        given = wanted.get("metadata") or {}
        owner_type = self._pod_resource if is_pod else self.backend.store.collection(POD_GROUPS).resource
        kind = {"apiVersion": owner_type.api_version, "kind": owner_type.kind}
        document = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {
                "generateName": f"{metadata['name']}-{name}-",
                "namespace": namespace,
                "labels": given.get("labels") or {},
                "annotations": {**(given.get("annotations") or {}), POD_CLAIM_NAME: name},
                "ownerReferences": controlled_by({**owner, **kind}),
            },
            "spec": wanted["spec"],
        }
        return self.create(self._claim_resource, document, namespace=namespace).name

    # Claims.

    def _reconcile_claim(self, key: str) -> None:
        collection = self.backend.store.collection(CLAIMS)
        stored = collection.get(key)
        if stored is None:
            return
        claim = stored.decode()
        metadata, status = claim["metadata"], claim.get("status") or {}
        reserved = status.get("reservedFor") or []
        using = [one for one in reserved if self._uses(stored.namespace, one)]
        owner = _controller_of(metadata, "Pod")
        needless = bool(owner) and not self._uses(stored.namespace, owner)
        unused = not using and (metadata.get("deletionTimestamp") or needless)
        if len(using) < len(reserved) or (unused and status.get("allocation")):
            status["reservedFor"] = using
            if not using:
                status.pop("reservedFor")
                if unused or reserved:
                    status.pop("allocation", None)
            claim["status"] = status
            stored = self.backend.write_status(self._claim_resource, claim, stored)
            claim = stored.decode()
        if needless and not claim["metadata"].get("deletionTimestamp"):
            self.delete(stored, self._claim_resource)
            return
        finalizers = claim["metadata"].get("finalizers") or []
        # A scheduler puts it on before it allocates.
        going = claim["metadata"].get("deletionTimestamp")
        if going and FINALIZER in finalizers and not (claim.get("status") or {}).get("allocation"):
            claim["metadata"]["finalizers"] = [one for one in finalizers if one != FINALIZER]
            self.commit(stored, self._claim_resource, claim)

    def _uses(self, namespace: str, consumer: Object) -> bool:
        """Tell whether what a claim is reserved for is there: a pod that has not ended, or a PodGroup."""
        if consumer.get("resource") == "podgroups":
            groups = self.backend.store.find_collection(POD_GROUPS)
            group = None if groups is None else groups.get(f"{namespace}/{consumer.get('name', '')}")
            return group is not None and group.uid == consumer.get("uid")
        pod = self.backend.find(PODS, f"{namespace}/{consumer.get('name', '')}")
        if pod is None or pod["metadata"]["uid"] != consumer.get("uid"):
            return False
        return (pod.get("status") or {}).get("phase") not in _ENDED


def _references(owner: Object) -> list[Object]:
    """Return the claims that a pod or a PodGroup names."""
    return list(owner.get("spec", {}).get("resourceClaims") or ())


def _made(owner: Object) -> list[Object]:
    """Return which claims were made for a pod or a PodGroup."""
    return list(owner.get("status", {}).get("resourceClaimStatuses") or ())


def _controller_of(metadata: Object, *kinds: str) -> Object:
    """Return the reference to the controller of an object if it is of one of those kinds, else an empty one."""
    references = metadata.get("ownerReferences") or ()
    return next((one for one in references if one.get("controller") and one.get("kind") in kinds), {})


VOLUMES, VOLUME_CLAIMS = "persistentvolumes", "persistentvolumeclaims"
_BOUND = "pv.kubernetes.io/bind-completed"
_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"


class VolumeController(Controller[str]):
    """Reconciles volumes, by name."""

    name = "persistentvolume-controller"

    def begin(self) -> None:
        """Look at every volume."""
        #: By claim, `namespace/name`, the volumes that name it.
        self._kept: dict[str, set[str]] = {}
        self._claim_of: dict[str, str] = {}
        for stored in self.backend.store.collection(VOLUMES):
            self._seen(stored)
        self.backend.store.follow(VOLUMES, self._volume_changed)
        self.backend.store.follow(VOLUME_CLAIMS, self._claim_changed)

    def _seen(self, stored: Stored) -> None:
        reference = stored.decode()["spec"].get("claimRef")
        self._forget(stored.name)
        if reference:
            key = _claim_key(reference)
            self._claim_of[stored.name] = key
            self._kept.setdefault(key, set()).add(stored.name)
        self.queue(stored.name)

    def _forget(self, name: str) -> None:
        key = self._claim_of.pop(name, None)
        if key is not None:
            self._kept[key].discard(name)

    def _volume_changed(self, event: Event) -> None:
        if event.type is EventType.DELETED:
            self._forget(event.stored.name)
        else:
            self._seen(event.stored)

    def _claim_changed(self, event: Event) -> None:
        for name in sorted(self._kept.get(event.stored.key, ())):
            self.queue(name)

    def reconcile(self, key: str) -> float | None:
        """Bind one volume, or say that it is free, or left behind."""
        collection = self.backend.store.collection(VOLUMES)
        stored = collection.get(key)
        if stored is None:
            return None
        volume = stored.decode()
        reference = volume["spec"].get("claimRef")
        phase = "Available"
        if reference:
            claims = self.backend.store.collection(VOLUME_CLAIMS)
            stored_claim = claims.get(_claim_key(reference))
            claim = None if stored_claim is None else stored_claim.decode()
            if stored_claim is not None and claim is not None and _may_be_bound(volume, claim):
                reference["uid"] = claim["metadata"]["uid"]
                phase = "Bound"
                _bind(claim, volume)
                self.backend.store.update(claims, claim, stored_claim)
            elif volume["status"].get("phase") in ("Bound", "Released"):
                phase = "Released"
        volume["status"]["phase"] = phase
        self.backend.store.update(collection, volume, stored)
        return None


def _claim_key(reference: Object) -> str:
    return f"{reference.get('namespace', '')}/{reference.get('name', '')}"


def _may_be_bound(volume: Object, claim: Object) -> bool:
    same = volume["spec"]["claimRef"].get("uid", "") in ("", claim["metadata"]["uid"])
    return same and claim["spec"].get("volumeName", "") in ("", volume["metadata"]["name"])


def _bind(claim: Object, volume: Object) -> None:
    spec, metadata = volume["spec"], claim["metadata"]
    annotations = {**(metadata.get("annotations") or {}), _BOUND: "yes"}
    if not claim["spec"].get("volumeName"):
        annotations[_BY_CONTROLLER] = "yes"
    metadata["annotations"] = annotations
    claim["spec"]["volumeName"] = volume["metadata"]["name"]
    claim["status"] = {
        **claim.get("status", {}),
        "phase": "Bound",
        "accessModes": spec.get("accessModes") or [],
        "capacity": spec.get("capacity") or {},
    }
