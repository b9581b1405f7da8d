"""A cluster of blocks and racks as manifests, with a topology of it in each dialect."""

from tests.given.logs.simulating import GPU


def nodes(*, blocks: int = 2, racks: int = 2, hosts: int = 2) -> str:
    """Nodes of two GPUs each, called `<block><rack><host>`: `a00` is the first."""
    fabric_nodes = []
    for block in range(blocks):
        for rack in range(racks):
            for host in range(hosts):
                name = f"{'abcd'[block]}{rack}{host}"
                labels = f"{{block: {name[0]}, rack: r{rack}, kubernetes.io/hostname: {name}}}"
                fabric_nodes.append(
                    f"apiVersion: v1\nkind: Node\nmetadata: {{name: {name}, labels: {labels}}}\n"
                    f"status: {{allocatable: {{cpu: 16, memory: 64Gi, pods: 110, {GPU}: 2}}}}\n"
                )
    return "---\n".join(fabric_nodes)


def label_topology(api: str, name: str = "dc", levels: tuple[str, ...] = ("block", "rack")) -> str:
    """A Topology of KAI or of Kueue by labels, down to the single nodes."""
    labels = ", ".join(f"{{nodeLabel: {level}}}" for level in (*levels, "kubernetes.io/hostname"))
    return f"apiVersion: {api}\nkind: Topology\nmetadata: {{name: {name}}}\nspec: {{levels: [{labels}]}}\n"


def network_topology() -> str:
    """Koordinator's: a spine is a block, a block is a rack."""
    layers = (
        "{topologyLayer: NodeTopologyLayer, parentTopologyLayer: BlockLayer}",
        "{topologyLayer: BlockLayer, labelKey: [rack], parentTopologyLayer: SpineLayer}",
        "{topologyLayer: SpineLayer, labelKey: [block]}",
    )
    return (
        "apiVersion: scheduling.koordinator.sh/v1alpha1\nkind: ClusterNetworkTopology\nmetadata: {name: default}\n"
        f"spec: {{networkTopologySpec: [{', '.join(layers)}]}}\n"
    )


def hyper_nodes() -> str:
    """Volcano's: tier 1 is a rack, tier 2 a block."""
    wires = []
    for block in "ab":
        for rack in range(2):
            labels = f"{{matchLabels: {{block: {block}, rack: r{rack}}}}}"
            wires.append(
                _hyper_node(f"{block}{rack}", 1, "rack", f"{{type: Node, selector: {{labelMatch: {labels}}}}}")
            )
        members = (f"{{type: HyperNode, selector: {{exactMatch: {{name: {block}{rack}}}}}}}" for rack in range(2))
        wires.append(_hyper_node(block, 2, "block", ", ".join(members)))
    return "---\n".join(wires)


def _hyper_node(name: str, tier: int, tier_name: str, members: str) -> str:
    return (
        f"apiVersion: topology.volcano.sh/v1alpha1\nkind: HyperNode\nmetadata: {{name: {name}}}\n"
        f"spec: {{tier: {tier}, tierName: {tier_name}, members: [{members}]}}\n"
    )
