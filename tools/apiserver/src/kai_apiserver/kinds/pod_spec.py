"""Defaults of a pod's spec, wherever it stands: in a pod or in a template."""

from kai_apiserver.objects import Object

_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_PROBE_DEFAULTS = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}
_FILE_MODE = 0o644


def containers_of(spec: Object) -> list[Object]:
    """Init containers and containers, in the order in which they start."""
    return [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]


def default_pod_spec(spec: Object) -> None:
    """Fill in what a pod template's spec leaves out."""
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("securityContext", {})
    spec.setdefault("schedulerName", "default-scheduler")
    if spec.get("serviceAccountName"):
        spec["serviceAccount"] = spec["serviceAccountName"]
    for container in [*containers_of(spec), *(spec.get("ephemeralContainers") or ())]:
        _default_container(container, host_network=bool(spec.get("hostNetwork")))
    for volume in spec.get("volumes") or ():
        _default_volume(volume)
    for constraint in spec.get("topologySpreadConstraints") or ():
        constraint.setdefault("nodeAffinityPolicy", "Honor")
        constraint.setdefault("nodeTaintsPolicy", "Ignore")


def default_pull_policy(image: str) -> str:
    """`Always` for the tag `latest` and for no tag at all."""
    if "@" in image:
        return "IfNotPresent"
    tag = image.rpartition("/")[2].partition(":")[2]
    return "Always" if tag in ("", "latest") else "IfNotPresent"


def _default_container(container: Object, *, host_network: bool) -> None:
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    container.setdefault("imagePullPolicy", default_pull_policy(container.get("image", "")))
    for port in container.get("ports") or ():
        port.setdefault("protocol", "TCP")
        if host_network and "containerPort" in port:
            port.setdefault("hostPort", port["containerPort"])
    for probe in filter(None, map(container.get, _PROBES)):
        for field, value in _PROBE_DEFAULTS.items():
            probe.setdefault(field, value)
        _default_http_get(probe)
        if "grpc" in probe:
            probe["grpc"].setdefault("service", "")
    for handler in (container.get("lifecycle") or {}).values():
        if isinstance(handler, dict):
            _default_http_get(handler)
    for variable in container.get("env") or ():
        field_ref = (variable.get("valueFrom") or {}).get("fieldRef")
        if field_ref:
            field_ref.setdefault("apiVersion", "v1")


def _default_http_get(handler: Object) -> None:
    if "httpGet" in handler:
        handler["httpGet"].setdefault("path", "/")
        handler["httpGet"].setdefault("scheme", "HTTP")


def _default_volume(volume: Object) -> None:
    if len(volume) == 1:
        volume["emptyDir"] = {}
    for source in ("secret", "configMap", "downwardAPI", "projected"):
        if source in volume:
            volume[source].setdefault("defaultMode", _FILE_MODE)
    if "hostPath" in volume:
        volume["hostPath"].setdefault("type", "")
    for projection in (volume.get("projected") or {}).get("sources") or ():
        if "serviceAccountToken" in projection:
            projection["serviceAccountToken"].setdefault("expirationSeconds", 3600)
    for item in (volume.get("downwardAPI") or {}).get("items") or ():
        if "fieldRef" in item:
            item["fieldRef"].setdefault("apiVersion", "v1")
