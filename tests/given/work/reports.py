"""Reports of exporters for tests, as they travel."""

from typing import Any

import msgspec

GPU = "nvidia.com/gpu"


def pod_report(name: str, **amounts_by_zone: dict[str, int]) -> dict[str, Any]:
    """A pod with one container; zones by keyword: `node_0={"cpu": 8000}`."""
    zones = [{"zone": zone.replace("_", "-"), "amount": amount} for zone, amount in amounts_by_zone.items()]
    return {"namespace": "default", "name": name, "containers": [{"name": "main", "zones": zones}]}


def report(*pods: Any, **fields: Any) -> dict[str, Any]:
    """A report of node n1, observed at second 10,000."""
    return {
        "version": 1,
        "node": "n1",
        "instance": "one",
        "sequence": 1,
        "observed_at": 10_000_000_000,
        "full": False,
        "pods": list(pods),
        **fields,
    }


def encode(value: Any) -> bytes:
    return msgspec.json.encode(value)
