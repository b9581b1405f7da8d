"""Kubeconfigs for those who may do everything."""

import base64
import os
from pathlib import Path

import yaml

_NAME = "kai-simulator"


def write_kubeconfig(path: Path, *, server: str, token: str, authority: bytes | None = None) -> None:
    """Write a kubeconfig, readable by the owner only; a program that waits for the file sees it whole."""
    cluster: dict[str, str] = {"server": server}
    if authority is not None:
        cluster["certificate-authority-data"] = base64.b64encode(authority).decode()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": _NAME, "cluster": cluster}],
        "users": [{"name": "admin", "user": {"token": token}}],
        "contexts": [{"name": _NAME, "context": {"cluster": _NAME, "user": "admin", "namespace": "default"}}],
        "current-context": _NAME,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.touch(mode=0o600)
    temporary.write_text(yaml.safe_dump(config, sort_keys=False))
    temporary.rename(path)
