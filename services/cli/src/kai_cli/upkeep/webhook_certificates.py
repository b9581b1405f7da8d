"""`kai webhook certificates`: what the admission webhook and the API server need to trust each other, as manifests.

The authority signs one certificate, and its key is thrown away: nobody can sign another one. A rotation makes a new
authority; the one before stays trusted until the next, so that it does not matter which manifest is applied first.
"""

import base64
import binascii
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import yaml
from cryptography import x509
from cyclopts import Parameter
from cyclopts.validators import Number
from kaicore.errors import ConfigurationError
from kaicore.kube.kinds.table import GROUP_KINDS, TOPOLOGY_KINDS
from kaicore.kube.normalize.gpu_shares import SHARE_ANNOTATIONS
from kaicore.kube.normalize.share_dialects import SHARE_DIALECTS
from kaicore.runtime.access.certificates import make_server_certificate

from kai_cli.sources.manifests import read_manifests

Manifest = dict[str, Any]

#: What the Secret and the service are called where `deploy/k8s/webhook` is applied as it is.
_NAMESPACE, _SERVICE, _SECRET = "kai-system", "kai-webhook", "kai-webhook-tls"

_AUTHORITY = "ca.crt"


def certificates(
    *,
    namespace: str = _NAMESPACE,
    service: str = _SERVICE,
    secret: str = _SECRET,
    days: Annotated[int, Parameter(validator=Number(gte=1, lte=3650))] = 365,
    previous: Annotated[Path | None, Parameter(allow_leading_hyphen=True)] = None,
    gpu_sharing: bool = False,
) -> None:
    """Make the admission webhook's certificate, and print its Secret and webhook configuration as manifests.

    Args:
        namespace: of the webhook.
        service: by which the API server calls it.
        secret: that it reads its certificate from.
        days: how long the certificate is valid; make another one before they are over.
        previous: the Secret as it is now, or - for standard input: its authority stays trusted meanwhile.
        gpu_sharing: have pods that ask for a share of a GPU completed, too.
    """
    trusted = [] if previous is None else [_authority_of(previous)]
    files = make_certificate([f"{service}.{namespace}.svc", f"{service}.{namespace}.svc.cluster.local"], days=days)
    trusted.insert(0, files[_AUTHORITY])
    metadata = {"name": secret, "namespace": namespace, "labels": {"app.kubernetes.io/part-of": "kai-ledger"}}
    data = {name: base64.b64encode(content).decode() for name, content in files.items()}
    manifests: list[Manifest] = [
        {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "kubernetes.io/tls", "data": data},
        configuration(namespace=namespace, service=service, authorities=b"".join(trusted)),
    ]
    if gpu_sharing:
        manifests.append(sharing_configuration(namespace=namespace, service=service, authorities=b"".join(trusted)))
    yaml.safe_dump_all(manifests, sys.stdout, sort_keys=False)


def configuration(*, namespace: str, service: str, authorities: bytes) -> Manifest:
    """Return the ValidatingWebhookConfiguration; `authorities` are certificates (PEM), one after the other."""
    judged: dict[tuple[str, tuple[str, ...]], set[str]] = {}
    for kind in (*TOPOLOGY_KINDS, *GROUP_KINDS):
        judged.setdefault((kind.resource.group, kind.resource.versions), set()).add(kind.resource.plural)
    rules = [
        {
            "apiGroups": [group],
            "apiVersions": list(versions),
            "operations": ["CREATE", "UPDATE"],
            "resources": sorted(resources),
        }
        for (group, versions), resources in sorted(judged.items())
    ]
    webhook = {
        "name": "topology.kai.scheduler",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        # What cannot be judged is let through: no cluster stands still for a check of spelling.
        "failurePolicy": "Ignore",
        "timeoutSeconds": 5,
        "matchPolicy": "Equivalent",
        "rules": rules,
        "clientConfig": _called(namespace, service, "/validate", authorities),
    }
    return _configuration("ValidatingWebhookConfiguration", service, webhook)


def sharing_configuration(*, namespace: str, service: str, authorities: bytes) -> Manifest:
    """Return the MutatingWebhookConfiguration for pods that ask for a share of a GPU; see `configuration`."""
    asks = " || ".join(f"'{name}' in object.metadata.annotations" for name in SHARE_ANNOTATIONS)
    prefixes = [prefix for dialect in SHARE_DIALECTS for prefix in dialect.prefixes]
    begins = " || ".join(f"name.startsWith('{prefix}')" for prefix in prefixes)
    limits = f"has(one.resources) && has(one.resources.limits) && one.resources.limits.exists(name, {begins})"
    containers = "object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : [])"
    shares: Manifest = {
        "name": "gpu-sharing.kai.scheduler",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        # Without what the webhook adds such a pod could never be bound; other pods do not get here.
        "failurePolicy": "Fail",
        "timeoutSeconds": 5,
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        "matchConditions": [{"name": "share", "expression": f"has(object.metadata.annotations) && ({asks})"}],
        "clientConfig": _called(namespace, service, "/mutate", authorities),
    }
    virtual = shares | {
        "name": "virtual-gpus.kai.scheduler",
        # They may be another scheduler's. One of ours that is not translated waits, with the reason.
        "failurePolicy": "Ignore",
        "matchConditions": [{"name": "virtual-gpus", "expression": f"({containers}).exists(one, {limits})"}],
    }
    return _configuration("MutatingWebhookConfiguration", service, shares, virtual)


def _called(namespace: str, service: str, path: str, authorities: bytes) -> Manifest:
    return {
        "service": {"namespace": namespace, "name": service, "path": path, "port": 443},
        "caBundle": base64.b64encode(authorities).decode(),
    }


def _configuration(kind: str, name: str, *webhooks: Manifest) -> Manifest:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name, "labels": {"app.kubernetes.io/part-of": "kai-ledger"}},
        "webhooks": list(webhooks),
    }


def make_certificate(names: list[str], *, days: int) -> dict[str, bytes]:
    """Make an authority and a certificate that it signs.

    Args:
        names: host names and addresses that the certificate is for.
        days: how long it is valid.

    Returns:
        `ca.crt`, `tls.crt` and `tls.key`, PEM.
    """
    now = datetime.now(UTC)
    made = make_server_certificate(
        [x509.DNSName(name) for name in names],
        authority_name=f"kai-ledger webhook authority {now:%Y-%m-%d}",
        server_name=names[0][:64],
        now=now,
        life=timedelta(days=days),
    )
    return {_AUTHORITY: made.authority, "tls.crt": made.certificate, "tls.key": made.key}


def _authority_of(file: Path) -> bytes:
    """Return the authority of a Secret, as PEM. Raises ConfigurationError: it has none."""
    for manifest in read_manifests([file]):
        try:
            authority = base64.b64decode((manifest.get("data") or {})[_AUTHORITY], validate=True)
            x509.load_pem_x509_certificate(authority)
        except (KeyError, TypeError, binascii.Error, ValueError):
            continue
        return authority
    raise ConfigurationError(f"--previous {file}: no Secret with an authority in data[{_AUTHORITY}]")
