"""Tokens by which exporters prove to ingest for which node they speak, where no Kubernetes vouches for them.

A client that knows the secret can speak for every node. A token lets its holder speak for one node of one cluster. A
token for `EVERY_NODE` covers all of them: that is for a process that serves a simulated fleet.
"""

import base64
from pathlib import Path

from kaicore.errors import ConfigurationError

#: Stands for all nodes of a cluster; no node can be named so.
EVERY_NODE = "*"

#: Bytes; a shorter secret can be guessed.
MIN_SECRET = 16


def node_token(secret: bytes, *, cluster: str, node: str) -> str:
    """Return the token of a node: its name, a dot, and URL-safe base64 of HMAC-SHA256 over `cluster/node`."""
    # Only here and below: an exporter by its service account needs neither it nor OpenSSL's hashes (decision 0500).
    import hmac  # noqa: PLC0415

    digest = hmac.digest(secret, f"{cluster}/{node}".encode(), "sha256")
    return f"{node}.{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"


def node_of_token(token: str, *, secret: bytes, cluster: str) -> str | None:
    """Return the node that owns the token, or `EVERY_NODE`; None if it is no token of the cluster.

    It takes a time that says nothing of how much of a token is right.
    """
    import hmac  # noqa: PLC0415

    node, _, _ = token.rpartition(".")
    right = node_token(secret, cluster=cluster, node=node)
    return node if hmac.compare_digest(token.encode(), right.encode()) else None


def read_secret(path: Path) -> bytes:
    """Read a shared secret; white space around it does not count.

    Raises ConfigurationError: the file cannot be read, or the secret is shorter than `MIN_SECRET`.
    """
    try:
        secret = path.read_bytes().strip()
    except OSError as error:
        raise ConfigurationError(f"secret file {path}: {error.strerror}") from error
    if len(secret) < MIN_SECRET:
        raise ConfigurationError(f"secret file {path}: has {len(secret)} bytes, needs {MIN_SECRET} at least")
    return secret
