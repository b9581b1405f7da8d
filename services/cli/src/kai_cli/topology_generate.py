"""`kai topology generate`: a topology from labels or from a fabric, in any dialect."""

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
import yaml
from cyclopts import Parameter
from kaicore.analysis.trial.simulation.manifest_text import Reading, take_in
from kaicore.errors import ConfigurationError
from kaicore.kube.api.access import configured_access
from kaicore.kube.api.client import KubeClient

from kai_cli.ibnetdiscover import parse_fabric, tiers
from kai_cli.load import service_kubeconfig
from kai_cli.manifests import read_files
from kai_cli.topology_manifests import Described, Dialect, manifests
from kai_cli.topology_objects import read_topologies
from kai_cli.topology_presets import TOPOGRAPH_TIER, Preset, named_levels, preset_levels, tier_levels

Labels = Mapping[str, Mapping[str, str]]


def generate(  # long: one flag for each way in
    *,
    kind: Dialect = "kai",
    labels: str | None = None,
    preset: Preset | None = None,
    from_ibnetdiscover: Path | None = None,
    files: Annotated[list[Path] | None, Parameter(name="--file", allow_leading_hyphen=True)] = None,
    live: bool = False,
    data_dir: Path | None = None,
    cluster: str | None = None,
    kubeconfig: Path | None = None,
    name: str = "default",
) -> int:
    """Write a topology as manifests: from the labels of nodes, or from what ibnetdiscover prints of the fabric.

    Args:
        kind: of the objects: kai (Topology), kueue (Topology), koordinator (ClusterNetworkTopology) or volcano
            (HyperNodes).
        labels: label keys with commas between them, from the widest level to the narrowest.
        preset: the labels of a platform instead.
        from_ibnetdiscover: what ibnetdiscover prints, instead; the labels that nodes need are written too.
        files: manifests of the nodes, or folders of them, or - for standard input; may be given several times.
        live: ask a cluster for its nodes.
        data_dir: of the `kai up` that runs the cluster.
        cluster: which of its clusters; by default the current one (`kai cluster use`).
        kubeconfig: another API server instead.
        name: of the Topology; koordinator's is always called default, and HyperNodes are called as the domains are.
    """
    given = [labels is not None, preset is not None, from_ibnetdiscover is not None]
    if sum(given) != 1:
        raise ConfigurationError("generate from what? Name one of --labels, --preset, --from-ibnetdiscover")
    nodes: Labels = {}
    if files:
        nodes = _nodes(read_files(files))
    elif live or kubeconfig is not None or data_dir is not None:
        nodes = asyncio.run(_live(service_kubeconfig(data_dir, cluster, kubeconfig)))
    if from_ibnetdiscover is not None:
        described = _from_fabric(from_ibnetdiscover, nodes, name)
    elif preset is not None:
        described = Described(name, preset_levels(preset, nodes), nodes)
    else:
        described = Described(name, named_levels(labels or "", nodes), nodes)
    documents = manifests(described, kind)
    if not documents:
        raise ConfigurationError("HyperNodes are made from nodes, and no node has the labels: give --file, or --live")
    yaml.safe_dump_all(documents, sys.stdout, sort_keys=False)
    return 0


def _nodes(reading: Reading) -> Labels:
    nodes = read_topologies(reading).nodes
    if not nodes:
        raise ConfigurationError("there is no Node")
    return {name: node.labels for name, node in nodes.items()}


async def _live(kubeconfig: Path) -> Labels:
    async with KubeClient(configured_access(str(kubeconfig))) as client:
        return await live_nodes(client)


async def live_nodes(client: KubeClient) -> Labels:
    """Return the labels of a cluster's nodes, by name.

    Raises:
        ConfigurationError: there is no node.
    """
    reading = Reading()
    take_in(reading, msgspec.json.decode(await client.get("/api/v1/nodes")), "the cluster")
    return _nodes(reading)


def _from_fabric(file: Path, nodes: Labels, name: str) -> Described:
    try:
        fabric = parse_fabric(file.read_text("utf-8", errors="replace"))
    except OSError as error:
        raise ConfigurationError(f"{file}: {error.strerror or error}") from error
    labels_by_tier = tiers(fabric, nodes)
    if not labels_by_tier:
        raise ConfigurationError(
            f"{file}: no switch with a node of the cluster" if nodes else f"{file}: no switch with a node"
        )
    added: dict[str, dict[str, str]] = {}
    for tier, domains in enumerate(labels_by_tier):
        for node, domain in domains.items():
            added.setdefault(node, {})[f"{TOPOGRAPH_TIER}{tier}"] = domain
    labelled = {node: {**nodes.get(node, {}), **own} for node, own in added.items()}
    return Described(name, tier_levels(reversed(range(len(labels_by_tier)))), labelled, added)
