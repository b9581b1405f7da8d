"""`kai up` with shares of GPUs: the namespace of reservation pods."""

from pathlib import Path

import pytest
from kai_cli.running.stack import make_reservation_namespace

from tests.given.servers.kube import simulated

NAMESPACES = "/api/v1/namespaces"


@pytest.mark.parametrize(
    ("settings", "made"),
    [
        ("gpu_sharing: true\n", {"kai-resource-reservation"}),
        ("gpu_sharing: true\ngpu_reservation_namespace: gpus\n", {"gpus"}),
        ("{}\n", set()),
    ],
)
async def test_namespace_of_reservation_pods_is_made_where_gpus_are_shared_however_often(
    tmp_path: Path, settings: str, made: set[str]
) -> None:
    config, kubeconfig = tmp_path / "scheduler.yaml", tmp_path / "kubeconfig"
    config.write_text(settings)
    async with simulated() as api:
        api.server.write_http_kubeconfig(kubeconfig)
        before = {one["metadata"]["name"] for one in await api.items(NAMESPACES)}
        for _ in range(2):
            await make_reservation_namespace(str(kubeconfig), config)
        assert {one["metadata"]["name"] for one in await api.items(NAMESPACES)} - before == made
