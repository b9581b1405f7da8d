"""`kai topology generate`: a topology from labels or from a fabric, in any dialect.

A fabric is given as the output of `ibnetdiscover` (InfiniBand). Its blocks are those of topograph's sample
(NVIDIA/topograph, tests/output/ibnetdiscover/example.out): a `Switch` or a `Ca`, and a line for each of its ports that
is connected.
"""

import asyncio
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import yaml
from cyclopts import Parameter
from kaicore.analysis.trial.simulation.manifest_text import Reading, take_in
from kaicore.errors import ConfigurationError
from kaicore.kube.api.access import configured_access
from kaicore.kube.api.client import KubeClient
from kaicore.rules.model.node import HOSTNAME, KAI_TOPOLOGY, NODE_LAYER, TopologyDefinition, TopologyLevel
from kaicore.rules.topology.paths import LabelPaths
from kaicore.rules.topology.paths import Path as DomainPath
from kaicore.rules.topology.tree import TopologyTree
from kaicore.spelling import did_you_mean

from kai_cli.running.load import service_kubeconfig
from kai_cli.sources.manifests import read_files
from kai_cli.topology.files import read_topologies

Preset = Literal["aws", "gke", "oci", "topograph", "nvlink", "compute-domain"]


class LabelLevel(NamedTuple):
    """A level above the nodes: the label that tells a node's domain, and a short name."""

    label: str
    alias: str = ""


_PRESETS: dict[str, tuple[LabelLevel, ...]] = {
    # EC2's network node layers, the top one first, as DescribeInstanceTopology has them.
    "aws": tuple(LabelLevel(f"topology.k8s.aws/network-node-layer-{layer}", f"layer-{layer}") for layer in (1, 2, 3)),
    # GKE's labels for placement within a block (docs of GKE, "gce-topology-*").
    "gke": (
        LabelLevel("cloud.google.com/gce-topology-block", "block"),
        LabelLevel("cloud.google.com/gce-topology-subblock", "subblock"),
        LabelLevel("cloud.google.com/gce-topology-host", "host"),
    ),
    # OKE's labels of bare-metal nodes.
    "oci": (
        LabelLevel("oci.oraclecloud.com/host.network_block_id", "network-block"),
        LabelLevel("oci.oraclecloud.com/host.rack_id", "rack"),
    ),
    # NVIDIA's device plugin: nodes with GPUs that share an NVLink domain, `<cluster UUID>.<clique>`.
    "nvlink": (LabelLevel("nvidia.com/gpu.clique", "clique"),),
    # NVIDIA's DRA driver: nodes that a ComputeDomain has taken, by its UID.
    "compute-domain": (LabelLevel("resource.nvidia.com/computeDomain", "compute-domain"),),
}

#: Labels of topograph: from 1.0 on as many tiers as there are, tier 0 right above the nodes; before, these names.
TOPOGRAPH_TIER = "fabric.topograph.run/tier-"
_TOPOGRAPH_BEFORE_1 = tuple(
    LabelLevel(f"network.topology.nvidia.com/{name}", name) for name in ("core", "spine", "leaf", "accelerator")
)
_TIER = re.compile(re.escape(TOPOGRAPH_TIER) + r"(\d{1,3})")


def preset_levels(preset: Preset, nodes: Mapping[str, Mapping[str, str]]) -> tuple[LabelLevel, ...]:
    """Return the levels of a preset; of topograph those that nodes have, of which there must be some.

    Raises ConfigurationError: nodes are given, and have none of the labels of topograph; or none are given.
    """
    if preset != "topograph":
        return _PRESETS[preset]
    seen = {label for labels in nodes.values() for label in labels}
    tiers = sorted({int(match[1]) for label in seen if (match := _TIER.fullmatch(label))}, reverse=True)
    levels = tier_levels(tiers) or tuple(level for level in _TOPOGRAPH_BEFORE_1 if level.label in seen)
    if not levels:
        raise ConfigurationError(
            "--preset topograph: its tiers are read from nodes, and no node has a label of topograph"
        )
    return levels


def tier_levels(tiers: Iterable[int]) -> tuple[LabelLevel, ...]:
    """Return levels of topograph's labels."""
    return tuple(LabelLevel(f"{TOPOGRAPH_TIER}{tier}", f"tier-{tier}") for tier in tiers)


def named_levels(labels: str, nodes: Mapping[str, Mapping[str, str]]) -> tuple[LabelLevel, ...]:
    """Return the levels of label keys, with commas between them.

    Raises ConfigurationError: one is empty, is there twice, or is on no node where there are nodes; or the hostname is
    above another.
    """
    keys = [key.strip() for key in labels.split(",")]
    if keys[-1] == HOSTNAME and len(keys) > 1:
        keys.pop()  # the nodes themselves, which are always the lowest level
    seen = {label for one in nodes.values() for label in one}
    for index, key in enumerate(keys):
        if not key:
            raise ConfigurationError(f"--labels {labels}: an empty label")
        if key == HOSTNAME:
            raise ConfigurationError(f"--labels {labels}: {HOSTNAME} can only be the lowest level")
        if key in keys[:index]:
            raise ConfigurationError(f"--labels {labels}: {key} is there twice")
        if seen and key not in seen:
            raise ConfigurationError(f"--labels {labels}: no node has the label {key}{did_you_mean(key, sorted(seen))}")
    return tuple(LabelLevel(key) for key in keys)


Manifest = dict[str, Any]
Dialect = Literal["kai", "kueue", "koordinator", "volcano"]

#: The longest name of an object, and the longest last part of one that is made here, which leaves room for a number.
_MOST_NAME = 253
_NUMBER_ROOM = 8


@dataclass(frozen=True, slots=True)
class Described:
    """A topology that is to be written down.

    Attributes:
        name: of the object, where the dialect leaves the choice.
        levels: above the nodes, from the widest to the narrowest.
        nodes: labels by name, those of the levels included.
        added: labels that nodes do not have yet, by name of node; they are written down with the topology.
    """

    name: str
    levels: tuple[LabelLevel, ...]
    nodes: Mapping[str, Mapping[str, str]]
    added: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def manifests(described: Described, dialect: Dialect) -> list[Manifest]:
    """Return the objects that define a topology in a dialect."""
    return _DIALECTS[dialect](described)


def _labelled(described: Described) -> list[Manifest]:
    """Return nodes with just the labels that they need, to be applied with `kubectl apply --server-side`."""
    return [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": dict(labels)}}
        for name, labels in sorted(described.added.items())
    ]


def _kai(described: Described) -> list[Manifest]:
    levels = [
        {"nodeLabel": level.label, **({"alias": level.alias} if level.alias else {})} for level in described.levels
    ]
    return [*_labelled(described), _topology("kai.scheduler/v1alpha1", described.name, levels)]


def _kueue(described: Described) -> list[Manifest]:
    levels = [{"nodeLabel": level.label} for level in described.levels]
    return [*_labelled(described), _topology("kueue.x-k8s.io/v1beta2", described.name, levels)]


def _topology(api_version: str, name: str, levels: list[dict[str, str]]) -> Manifest:
    spec = {"levels": [*levels, {"nodeLabel": HOSTNAME}]}
    return {"apiVersion": api_version, "kind": "Topology", "metadata": {"name": name}, "spec": spec}


def _koordinator(described: Described) -> list[Manifest]:
    """Return the one ClusterNetworkTopology, which has to be called `default` (apis/scheduling/v1alpha1, v1.8.0)."""
    layers: list[Manifest] = []
    for layer, level in zip(_layer_names(described.levels), described.levels, strict=True):
        parent = {"parentTopologyLayer": layers[-1]["topologyLayer"]} if layers else {}
        layers.append({"topologyLayer": layer, "labelKey": [level.label], **parent})
    layers.append({"topologyLayer": NODE_LAYER, "parentTopologyLayer": layers[-1]["topologyLayer"]})
    topology = {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "ClusterNetworkTopology",
        "metadata": {"name": "default"},
        "spec": {"networkTopologySpec": layers},
    }
    return [*_labelled(described), topology]


def _layer_names(levels: Sequence[LabelLevel]) -> list[str]:
    """Return `RackLayer` for `example.com/rack`; the whole label, where the short name is another level's too."""
    short = [_camel(level.alias or level.label.rpartition("/")[2]) for level in levels]
    taken = [*short, NODE_LAYER]
    return [name if taken.count(name) == 1 else _camel(level.label) for name, level in zip(short, levels, strict=True)]


def _camel(text: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in re.split(r"[^A-Za-z0-9]+", text)) + "Layer"


def _volcano(described: Described) -> list[Manifest]:
    """Return a HyperNode per domain, tier 1 right above the nodes.

    Members are found by labels, so that nodes that come later are found too; by name where nodes have no labels yet.
    """
    labels = [level.label for level in described.levels]
    levels = tuple(TopologyLevel(label, (label,)) for label in labels)
    tree = TopologyTree(LabelPaths(TopologyDefinition(KAI_TOPOLOGY, described.name, "", "", levels)))
    for name, own in described.nodes.items():
        tree.put(name, own)
    names = sorted(described.nodes)
    columns = tree.columns(names)
    called = _HyperNodeNames()
    hyper_nodes: list[Manifest] = []
    for depth in reversed(range(len(levels))):
        for number, path in enumerate(columns.domains[depth]):
            within: list[DomainPath] = []
            inside = columns.of_rows[depth] == number
            if depth + 1 < len(levels):
                within = [one for one in columns.domains[depth + 1] if one[:-1] == path]
                inside &= columns.of_rows[depth + 1] < 0
            right_below = [names[row] for row in inside.nonzero()[0]]
            members = [{"type": "HyperNode", "selector": {"exactMatch": {"name": called.of(one)}}} for one in within]
            if described.added:
                members += [{"type": "Node", "selector": {"exactMatch": {"name": name}}} for name in right_below]
            elif right_below:
                members.append({"type": "Node", "selector": {"labelMatch": _selector(labels, path)}})
            spec: Manifest = {"tier": len(levels) - depth, "tierName": labels[depth], "members": members}
            metadata = {"name": called.of(path)}
            hyper_nodes.append(
                {"apiVersion": "topology.volcano.sh/v1alpha1", "kind": "HyperNode", "metadata": metadata, "spec": spec}
            )
    return hyper_nodes


def _selector(labels: Sequence[str], path: DomainPath) -> Manifest:
    """Return what selects the nodes of a domain that are in none of the next level."""
    selector: Manifest = {"matchLabels": dict(zip(labels, path, strict=False))}
    if len(path) < len(labels):
        selector["matchExpressions"] = [{"key": labels[len(path)], "operator": "DoesNotExist"}]
    return selector


class _HyperNodeNames:
    """Names of objects for domains: the names of the path, as DNS allows them; with a number where that is taken."""

    def __init__(self) -> None:
        self._names: dict[DomainPath, str] = {}
        self._taken: set[str] = set()

    def of(self, path: DomainPath) -> str:
        if path not in self._names:
            name = re.sub(r"[^a-z0-9.-]+|\.(?=[.-])|(?<=-)\.", "-", "-".join(path).lower())
            name = name.strip("-.")[: _MOST_NAME - _NUMBER_ROOM].strip("-.") or "domain"
            number, unique = 1, name
            while unique in self._taken:
                number += 1
                unique = f"{name}-{number}"
            self._taken.add(unique)
            self._names[path] = unique
        return self._names[path]


_DIALECTS: dict[Dialect, Callable[[Described], list[Manifest]]] = {
    "kai": _kai,
    "kueue": _kueue,
    "koordinator": _koordinator,
    "volcano": _volcano,
}


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
) -> None:
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


def _nodes(reading: Reading) -> Labels:
    nodes = read_topologies(reading).nodes
    if not nodes:
        raise ConfigurationError("there is no Node")
    return {name: node.labels for name, node in nodes.items()}


async def _live(kubeconfig: Path) -> Labels:
    async with KubeClient(configured_access(str(kubeconfig))) as client:
        return await live_nodes(client)


async def live_nodes(client: KubeClient) -> Labels:
    """Return the labels of a cluster's nodes, by name. Raises ConfigurationError: there is no node."""
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
