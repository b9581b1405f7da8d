"""A topology is generated from the nodes of a cluster that runs."""

import pytest
from kai_cli.topology.generate import live_nodes
from kaicore.errors import ConfigurationError

from tests.given.servers.kube import simulated


async def test_labels_of_a_clusters_nodes_are_read() -> None:
    async with simulated() as api:
        await api.node("n1", rack="r1")
        await api.node("n2")
        nodes = await live_nodes(api.client)
    assert nodes["n1"]["rack"] == "r1"
    assert "rack" not in nodes["n2"]


async def test_a_cluster_without_nodes_is_refused() -> None:
    async with simulated() as api:
        with pytest.raises(ConfigurationError, match="there is no Node"):
            await live_nodes(api.client)
