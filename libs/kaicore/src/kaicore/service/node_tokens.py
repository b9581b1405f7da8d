"""Tokens by which exporters prove to ingest for which node they speak, where no Kubernetes vouches for them.

Whoever knows the secret can speak for every node. A token lets its holder speak for one node of one cluster, or, made
for `EVERY_NODE`, for all of them: that is for a process that serves a simulated fleet.
"""

import base64
import hmac
from pathlib import Path

from kaicore.errors import ConfigurationError

#: Stands for all nodes of a cluster; no node can be named so.
EVERY_NODE = "*"

#: Bytes; a shorter secret can be guessed.
MIN_SECRET = 16


def node_token(secret: bytes, *, cluster: str, node: str) -> str:
    """Return the token of a node: URL-safe base64 of HMAC-SHA256 over `cluster/node`, without padding."""
    digest = hmac.digest(secret, f"{cluster}/{node}".encode(), "sha256")
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def is_node_token(token: str, secret: bytes, *, cluster: str, node: str) -> bool:
    """Tell whether this is the node's token, in a time that says nothing of how much of it is right."""
    return hmac.compare_digest(token.encode(), node_token(secret, cluster=cluster, node=node).encode())


def read_secret(path: Path) -> bytes:
    """Read a shared secret; white space around it does not count.

    Raises:
        ConfigurationError: the file cannot be read, or the secret is shorter than `MIN_SECRET`.
    """
    try:
        secret = path.read_bytes().strip()
    except OSError as error:
        raise ConfigurationError(f"secret file {path}: {error.strerror}") from error
    if len(secret) < MIN_SECRET:
        raise ConfigurationError(f"secret file {path}: has {len(secret)} bytes, needs {MIN_SECRET} at least")
    return secret
