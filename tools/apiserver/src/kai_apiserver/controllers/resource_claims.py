"""Make the resource claims of pods' templates, name them in the pods' statuses, and let claims go that nobody uses.

What kube-controller-manager does (`pkg/controller/resourceclaim`): a claim made of a template is owned by its pod and
called after it; a pod that has ended, or is gone, is taken off `status.reservedFor`; a claim that no pod has
and that was made for a pod, or is to be deleted, has no devices any more, and loses its finalizer.
"""

from kai_apiserver.controllers.device_taints import claim_names
from kai_apiserver.controllers.reconciling import Controller
from kai_apiserver.objects import Object
from kai_apiserver.rest.backend import CONTROLLER, Backend, Operation, Target
from kai_apiserver.rest.deletion import DeleteOptions, delete
from kai_apiserver.rest.writing import commit, create
from kai_apiserver.store import Collection, Event, Stored

PODS, CLAIMS, TEMPLATES = "pods", "resourceclaims.resource.k8s.io", "resourceclaimtemplates.resource.k8s.io"
FINALIZER = "resource.kubernetes.io/delete-protection"
#: On a claim: by which name its pod calls it.
POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"

_ENDED = ("Succeeded", "Failed")


class ResourceClaimController(Controller[str]):
    """Reconciles pods with claims (`pod/…`) and claims (`claim/…`), by key."""

    name = "resource-claim-controller"

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self._pod_resource = backend.registry.find("", "v1", plural="pods")
        self._claim_resource = backend.registry.find("resource.k8s.io", "v1", plural="resourceclaims")
        #: Keys of pods that wait for a template, by the template's key.
        self._lacking: dict[str, set[str]] = {}

    def begin(self) -> None:
        """Look at every pod and every claim."""
        for stored in self.backend.store.collection(PODS):
            self._pod_seen(stored)
        for stored in self.backend.store.collection(CLAIMS):
            self.queue(f"claim/{stored.key}")
        self.backend.store.subscribe(self._pod_changed, PODS)
        self.backend.store.subscribe(self._claim_changed, CLAIMS)
        self.backend.store.subscribe(self._template_changed, TEMPLATES)

    def _pod_changed(self, collection: Collection, event: Event) -> None:
        del collection
        self._pod_seen(event.stored)

    def _pod_seen(self, stored: Stored) -> None:
        if b'"resourceClaims"' in stored.body or b'"extendedResourceClaimStatus"' in stored.body:
            self.queue(f"pod/{stored.key}")
            for name in claim_names(stored.decode()):
                self.queue(f"claim/{stored.namespace}/{name}")

    def _claim_changed(self, collection: Collection, event: Event) -> None:
        del collection
        self.queue(f"claim/{event.stored.key}")

    def _template_changed(self, collection: Collection, event: Event) -> None:
        del collection
        for key in sorted(self._lacking.pop(event.stored.key, ())):
            self.queue(f"pod/{key}")

    def reconcile(self, key: str) -> float | None:
        """Bring one pod's claims, or one claim, into the state they should be in."""
        kind, _, name = key.partition("/")
        if kind == "pod":
            self._reconcile_pod(name)
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
        statuses = {one["name"]: one for one in pod.get("status", {}).get("resourceClaimStatuses") or ()}
        for reference in pod["spec"].get("resourceClaims") or ():
            template = reference.get("resourceClaimTemplateName")
            if template and reference["name"] not in statuses:
                claim = self._claim_of(pod, reference["name"], template)
                if claim:
                    statuses[reference["name"]] = {"name": reference["name"], "resourceClaimName": claim}
        made = [statuses[name] for name in sorted(statuses)]
        if made != (pod.get("status", {}).get("resourceClaimStatuses") or []):
            pod.setdefault("status", {})["resourceClaimStatuses"] = made
            self.backend.write_status(self._pod_resource, pod, stored)

    def _claim_of(self, pod: Object, name: str, template_name: str) -> str:
        """Return the name of a pod's claim, which is made if need be; empty where there is no template."""
        metadata = pod["metadata"]
        namespace, uid = metadata["namespace"], metadata["uid"]
        for stored in self.backend.all_of(CLAIMS):
            claim = stored.decode()["metadata"]
            if _owner(claim) == uid and (claim.get("annotations") or {}).get(POD_CLAIM_NAME) == name:
                return str(claim["name"])
        template = self.backend.find(TEMPLATES, f"{namespace}/{template_name}")
        if template is None:
            self._lacking.setdefault(f"{namespace}/{template_name}", set()).add(f"{namespace}/{metadata['name']}")
            return ""
        wanted = template["spec"]
        given = wanted.get("metadata") or {}
        owner = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": uid}
        document = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {
                "generateName": f"{metadata['name']}-{name}-",
                "namespace": namespace,
                "labels": given.get("labels") or {},
                "annotations": {**(given.get("annotations") or {}), POD_CLAIM_NAME: name},
                "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
            },
            "spec": wanted["spec"],
        }
        target = Target(self._claim_resource, namespace)
        made = create(self.backend, target, given=document, operation=Operation(user=CONTROLLER))
        return made.name

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
        owner = _owner(metadata)
        needless = bool(owner) and not self._uses(stored.namespace, {"name": _owner_name(metadata), "uid": owner})
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
            options = DeleteOptions(uid=stored.uid, propagation="Background")
            delete(self.backend, stored, resource=self._claim_resource, options=options, operation=Operation())
            return
        finalizers = claim["metadata"].get("finalizers") or []
        # A scheduler puts it on before it allocates.
        going = claim["metadata"].get("deletionTimestamp")
        if going and FINALIZER in finalizers and not (claim.get("status") or {}).get("allocation"):
            self._without_finalizer(stored, claim, [one for one in finalizers if one != FINALIZER])

    def _without_finalizer(self, stored: Stored, claim: Object, finalizers: list[str]) -> None:
        claim["metadata"]["finalizers"] = finalizers
        target = Target(self._claim_resource, stored.namespace, stored.name)
        commit(self.backend, target, stored=stored, new=claim, operation=Operation(user=CONTROLLER))

    def _uses(self, namespace: str, consumer: Object) -> bool:
        """Tell whether a pod that a claim is reserved for is there and has not ended."""
        pod = self.backend.find(PODS, f"{namespace}/{consumer.get('name', '')}")
        if pod is None or pod["metadata"]["uid"] != consumer.get("uid"):
            return False
        return (pod.get("status") or {}).get("phase") not in _ENDED


def _owner(metadata: Object) -> str:
    return next((one["uid"] for one in metadata.get("ownerReferences") or () if _is_pod(one)), "")


def _owner_name(metadata: Object) -> str:
    return next((one["name"] for one in metadata.get("ownerReferences") or () if _is_pod(one)), "")


def _is_pod(reference: Object) -> bool:
    return bool(reference.get("controller")) and reference.get("kind") == "Pod"
