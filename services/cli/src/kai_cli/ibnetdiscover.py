"""Output of `ibnetdiscover` about an InfiniBand fabric, and the nodes that the fabric puts close to each other.

Its blocks are those of topograph's sample (NVIDIA/topograph, tests/output/ibnetdiscover/example.out): a `Switch` or a
`Ca`, and a line for each of its ports that is connected.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

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
