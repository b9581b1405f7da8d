"""`kai topology generate`: a topology from labels or from a fabric, in any dialect.

A fabric is given as the output of `ibnetdiscover` (InfiniBand). Its blocks are those of topograph's sample
(NVIDIA/topograph, tests/output/ibnetdiscover/example.out): a `Switch` or a `Ca`, and a line for each of its ports that
is connected.
"""

import asyncio
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec
import yaml
from cyclopts import Parameter
from kaicore.analysis.trial.simulation.manifest_text import Reading, take_in
from kaicore.errors import ConfigurationError
from kaicore.kube.api.access import configured_access
from kaicore.kube.api.client import KubeClient

from kai_cli.running.load import service_kubeconfig
from kai_cli.sources.manifests import read_files
from kai_cli.topology.manifests import Described, Dialect, manifests
from kai_cli.topology.objects import read_topologies
from kai_cli.topology.presets import TOPOGRAPH_TIER, Preset, named_levels, preset_levels, tier_levels

_SWITCH = re.compile(r'Switch\s+\d+\s+"(?P<id>[^"]+)"\s+#\s+"(?P<name>[^"]*)"')
_PORT = re.compile(r'\[\d+\]\s+"(?P<id>[^"]+)"\[\d+\](?:\([0-9a-fA-F]+\))?\s+#\s+"(?P<name>[^"]*)"')
#: `MF0;LEAF-01:MQM9701/U1`: the system's name is between the semicolon and the colon.
_SYSTEM = re.compile(r"[^;:]+;([^;:]+):[^;:]+")
#: `node-01 mlx5_0`; what else is connected (aggregation nodes, adapters that were not named) has not just two words.
_ADAPTER = re.compile(r"(\S+)\s\S+")
_LABEL_VALUE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


@dataclass(slots=True)
class Fabric:
    """Switches: what each is called, which switches it is connected to, and which nodes."""

    names: dict[str, str] = field(default_factory=dict)
    switches: dict[str, set[str]] = field(default_factory=dict)
    nodes: dict[str, set[str]] = field(default_factory=dict)


def parse_fabric(text: str) -> Fabric:
    """Parse what `ibnetdiscover` prints; lines that say nothing of switches are passed over."""
    fabric = Fabric()
    current = ""
    for line in text.splitlines():
        if match := _SWITCH.match(line):
            current = match["id"]
            system = _SYSTEM.fullmatch(match["name"])
            fabric.names[current] = system[1] if system else match["name"]
        elif not line.strip() or line.startswith("Ca"):
            current = ""
        elif current and (match := _PORT.match(line)):
            if match["id"].startswith("S-"):
                fabric.switches.setdefault(current, set()).add(match["id"])
                fabric.switches.setdefault(match["id"], set()).add(current)
            elif adapter := _ADAPTER.fullmatch(match["name"]):
                fabric.nodes.setdefault(current, set()).add(adapter[1])
    return fabric


def tiers(fabric: Fabric, node_names: Iterable[str]) -> list[dict[str, str]]:
    """Return, from the nodes up, the domain of each node in each tier.

    Nodes are in one domain of the lowest tier if they share a leaf switch, directly or over others: a node with
    adapters on different rails has several leaves, and the nodes of a unit have the same. Domains are in one of the
    next tier if their switches share one above. A domain is named by the first of its switches' names.

    Args:
        fabric: its switches.
        node_names: names of the nodes that matter; none for all that the fabric has.
    """
    wanted = set(node_names)
    below = {switch: {node for node in nodes if not wanted or node in wanted} for switch, nodes in fabric.nodes.items()}
    groups = _joined([({switch}, nodes) for switch, nodes in below.items() if nodes])
    labels_by_tier: list[dict[str, str]] = []
    seen = {switch for switches, _ in groups for switch in switches}
    while groups:
        labels_by_tier.append({node: _name(fabric, switches) for switches, nodes in groups for node in nodes})
        above = [
            ({up for switch in switches for up in fabric.switches.get(switch, ())} - seen, nodes)
            for switches, nodes in groups
        ]
        if not any(switches for switches, _ in above):
            break
        seen |= {switch for switches, _ in above for switch in switches}
        # A domain without a switch above is by itself in the next tier too.
        groups = _joined([(up or own, nodes) for (up, nodes), (own, _) in zip(above, groups, strict=True)])
    return labels_by_tier


def _joined(parts: list[tuple[set[str], set[str]]]) -> list[tuple[set[str], set[str]]]:
    """Join what has a switch or a node in common."""
    joined: list[tuple[set[str], set[str]]] = []
    for switches, nodes in parts:
        apart = []
        whole = (set(switches), set(nodes))
        for other in joined:
            if other[0] & whole[0] or other[1] & whole[1]:
                whole = (whole[0] | other[0], whole[1] | other[1])
            else:
                apart.append(other)
        joined = [*apart, whole]
    return joined


def _name(fabric: Fabric, switches: set[str]) -> str:
    """Return the first of the switches' names that can be a label's value; else the first of their GUIDs."""
    names = sorted(name for switch in switches if _LABEL_VALUE.fullmatch(name := fabric.names.get(switch, "")))
    return names[0] if names else min(switches)


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
