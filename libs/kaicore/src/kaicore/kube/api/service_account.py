"""A pod's service account: two files, and two variables with the address of the API server.

Source: Kubernetes' documentation, "Accessing the Kubernetes API from a Pod". Imports only Python's own modules, because
exporters use it too.
"""

import os
import ssl
import time
from contextlib import suppress
from pathlib import Path

from kaicore.errors import ConfigurationError

#: Where a pod has its service account.
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

#: Seconds after which a pod's token is read again.
TOKEN_S = 60.0


def in_a_pod() -> bool:
    """True if the environment says where an API server is, as it does in a pod."""
    return "KUBERNETES_SERVICE_HOST" in os.environ


class ServiceAccount:
    """The account of the pod that this process runs in.

    Attributes:
        base_url: of the API server, `https://host:port`.
        tls: trusts the cluster's authority.
    """

    def __init__(self) -> None:
        """Raises:
        ConfigurationError: the pod has no account.
        """
        host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        self.base_url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        try:
            self._token, self._read_at = _token(), time.monotonic()
            self.tls = ssl.create_default_context(cafile=SERVICE_ACCOUNT / "ca.crt")
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"cannot get access to Kubernetes by the pod's service account: {error}"
            ) from error

    def token(self) -> str:
        """Return the token to use now: the kubelet renews the file long before the token in it expires."""
        if time.monotonic() - self._read_at > TOKEN_S:
            with suppress(OSError, ValueError):
                self._token, self._read_at = _token(), time.monotonic()
        return self._token


def _token() -> str:
    file = SERVICE_ACCOUNT / "token"
    token = file.read_text().strip()
    if not token:
        raise ValueError(f"{file} is empty")
    return token
