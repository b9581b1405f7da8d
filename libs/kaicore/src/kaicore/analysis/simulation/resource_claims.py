"""Resource claims that kube-controller-manager makes of templates, for pods of a simulated world."""

from typing import Any

from kaicore.kube.workloads import Object, derived_uid

RESOURCE_CLAIM_KIND = ("resource.k8s.io", "ResourceClaim")
TEMPLATE_KIND = ("resource.k8s.io", "ResourceClaimTemplate")


class ClaimTemplates:
    """The templates of a world."""

    def __init__(self) -> None:
        #: By namespace and name.
        self._specs: dict[tuple[str, str], Object] = {}

    def add(self, template: Object) -> None:
        """Know a template."""
        meta = template["metadata"]
        self._specs[meta["namespace"], meta["name"]] = template["spec"]

    def make(self, pod: Object) -> tuple[Object, list[Object]]:
        """Make a pod's claims.

        Args:
            pod: not changed.

        Returns:
            the pod with the claims in its status, and the claims; a pod that names claims already keeps these.
        """
        status: dict[str, Any] = dict(pod.get("status") or {})
        named = list(status.get("resourceClaimStatuses") or ())
        claims = []
        for reference in _without_claim(pod):
            claim = self._claim(pod, reference)
            if claim is not None:
                claims.append(claim)
                named.append({"name": reference["name"], "resourceClaimName": claim["metadata"]["name"]})
        if not claims:
            return pod, claims
        return {**pod, "status": {**status, "resourceClaimStatuses": named}}, claims

    def missing(self, pod: Object) -> list[tuple[str, str]]:
        """Return the templates that a pod waits for and that the world does not have, by namespace and name."""
        keys = (_template_of(pod, one) for one in _without_claim(pod) if one.get("resourceClaimTemplateName"))
        return [key for key in keys if key not in self._specs]

    def _claim(self, pod: Object, reference: Object) -> Object | None:
        meta = pod["metadata"]
        spec = self._specs.get(_template_of(pod, reference))
        if spec is None:
            return None
        name = f"{meta['name']}-{reference['name']}"
        owner = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"], "controller": True}
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {
                "name": name,
                "namespace": meta["namespace"],
                "uid": derived_uid("resource.k8s.io", "ResourceClaim", meta["namespace"], f"{name}/{meta['uid']}"),
                "ownerReferences": [owner],
            },
            "spec": spec.get("spec") or {},
        }


def _without_claim(pod: Object) -> list[Object]:
    """Return the references of a pod for which its status names no claim yet."""
    named = {one.get("name") for one in (pod.get("status") or {}).get("resourceClaimStatuses") or ()}
    return [one for one in pod["spec"].get("resourceClaims") or () if one.get("name") not in named]


def _template_of(pod: Object, reference: Object) -> tuple[str, str]:
    return pod["metadata"]["namespace"], str(reference.get("resourceClaimTemplateName"))
