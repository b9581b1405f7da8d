"""`kai topology generate`: whatever dialect it writes, what it wrote is read back as the same tree."""

from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from kai_cli.sources.manifests import read_files
from kai_cli.topology.files import read_topologies
from kai_cli.topology.generate import Dialect, generate, parse_fabric, tiers
from kaicore.errors import ConfigurationError
from kaicore.yaml_text import load_yaml_all

DIALECTS: tuple[Dialect, ...] = get_args(Dialect)
#: Racks of the same name in two blocks, names that no object can have, and a node without any label.
LABELS = {
    "n1": {"example.com/block": "B_1", "example.com/rack": "r1"},
    "n2": {"example.com/block": "B_1", "example.com/rack": "r1"},
    "n3": {"example.com/block": "B_1", "example.com/rack": "r2"},
    "n4": {"example.com/block": "b-1", "example.com/rack": "r1"},
    "n5": {},
}

#: Two rails: each node has an adapter on each of two leaves; u1 and u2 are two units, other things are connected too.
FABRIC = """\
#
# Topology file: generated on Sun Nov 22 04:00:00 2026
#
switchguid=0x01(01)
Switch	65 "S-01"		# "MF0;LEAF-1-1:MQM9701/U1" enhanced port 0 lid 1 lmc 0
[1]	"H-a1"[1](a1) 		# "n1 mlx5_0" lid 2 4xNDR
[2]	"H-a2"[1](a2) 		# "n2 mlx5_0" lid 3 4xNDR
[3]	"H-a9"[1](a9) 		# "MT4129 ConnectX7   Mellanox Technologies" lid 9 4xNDR
[9]	"S-11"[1]		# "MF0;SPINE-1:MQM9701/U1" lid 11 4xNDR
[65]	"H-aa"[1](aa) 		# "Mellanox Technologies Aggregation Node" lid 10 4xNDR

Switch	65 "S-02"		# "MF0;LEAF-1-2:MQM9701/U1" enhanced port 0 lid 4 lmc 0
[1]	"H-b2"[1](b2) 		# "n2 mlx5_1" lid 5 4xNDR
[2]	"H-b3"[1](b3) 		# "n3 mlx5_1" lid 6 4xNDR
[9]	"S-12"[1]		# "MF0;SPINE-2:MQM9701/U1" lid 12 4xNDR

Switch	65 "S-03"		# "MF0;LEAF-2-1:MQM9701/U1" enhanced port 0 lid 7 lmc 0
[1]	"H-a4"[1](a4) 		# "n4 mlx5_0" lid 8 4xNDR
[2]	"H-a6"[1](a6) 		# "ufm-1 mlx5_0" lid 8 4xNDR

Switch	65 "S-11"		# "MF0;SPINE-1:MQM9701/U1" enhanced port 0 lid 11 lmc 0
[1]	"S-01"[9]		# "MF0;LEAF-1-1:MQM9701/U1" lid 1 4xNDR
[2]	"S-03"[9]		# "MF0;LEAF-2-1:MQM9701/U1" lid 7 4xNDR

Ca	1 "H-a1"		# "n1 mlx5_0"
[1](a1) 	"S-01"[1]		# lid 2 lmc 0 "MF0;LEAF-1-1:MQM9701/U1" lid 1 4xNDR
"""


def node(name: str, labels: dict[str, str]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}


@pytest.fixture
def nodes(tmp_path: Path) -> Path:
    path = tmp_path / "nodes.yaml"
    path.write_text(yaml.safe_dump_all([node(name, labels) for name, labels in LABELS.items()]))
    return path


@pytest.fixture
def fabric(tmp_path: Path) -> Path:
    path = tmp_path / "ibnetdiscover.out"
    path.write_text(FABRIC)
    return path


def written(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return list(load_yaml_all(capsys.readouterr().out))


def domains(path: Path) -> list[set[frozenset[str]]]:
    """Return, of each level from the widest, which nodes are together, of the only topology of manifests."""
    topologies = read_topologies(read_files([path]))
    assert topologies.warnings == []
    (key,) = topologies.book.topologies()
    tree = topologies.book.tree(key)
    assert tree.problems == ()
    names = sorted(topologies.nodes)
    levels = []
    for of_rows in tree.columns(names).of_rows:
        together: dict[int, set[str]] = {}
        for name, domain in zip(names, of_rows.tolist(), strict=True):
            together.setdefault(domain, set()).add(name)
        together.pop(-1, None)
        levels.append({frozenset(one) for one in together.values()})
    return levels


@pytest.mark.parametrize("kind", DIALECTS)
def test_every_dialect_reads_back_as_the_tree_of_the_labels(
    kind: Dialect, tmp_path: Path, nodes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    generate(kind=kind, labels="example.com/block,example.com/rack", files=[nodes])
    (tmp_path / "topology.yaml").write_text(capsys.readouterr().out)
    assert (
        domains(tmp_path / "topology.yaml")
        != domains(tmp_path)
        == [
            {frozenset({"n1", "n2", "n3"}), frozenset({"n4"})},
            {frozenset({"n1", "n2"}), frozenset({"n3"}), frozenset({"n4"})},
            {frozenset({"n1"}), frozenset({"n2"}), frozenset({"n3"}), frozenset({"n4"})},
        ]
    )


@pytest.mark.parametrize("kind", DIALECTS)
def test_every_dialect_reads_back_as_the_tree_of_the_fabric(
    kind: Dialect, tmp_path: Path, fabric: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """n1 and n3 share no leaf, but each shares one with n2; LEAF-2-1 meets LEAF-1-1 in SPINE-1."""
    generate(kind=kind, from_ibnetdiscover=fabric)
    out = tmp_path / "out"
    out.mkdir()
    made = written(capsys)
    if kind == "volcano":
        made += [node(name, {}) for name in ("n1", "n2", "n3", "n4", "ufm-1")]
    (out / "topology.yaml").write_text(yaml.safe_dump_all(made))
    leaves, spines = {"n1", "n2", "n3"}, {"n4", "ufm-1"}
    assert domains(out)[:2] == [{frozenset(leaves | spines)}, {frozenset(leaves), frozenset(spines)}]


def test_a_fabric_names_a_domain_by_its_first_switch_and_leaves_out_what_is_no_node_of_the_cluster() -> None:
    assert tiers(parse_fabric(FABRIC), ["n1", "n4"]) == [
        {"n1": "LEAF-1-1", "n4": "LEAF-2-1"},
        {"n1": "SPINE-1", "n4": "SPINE-1"},
    ]


def test_a_hyper_node_selects_by_all_labels_of_its_path_so_that_later_nodes_are_found(
    nodes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    generate(kind="volcano", labels="example.com/block,example.com/rack", files=[nodes])
    by_name = {one["metadata"]["name"]: one["spec"] for one in written(capsys)}
    assert sorted(by_name) == ["b-1", "b-1-2", "b-1-r1", "b-1-r1-2", "b-1-r2"]
    assert by_name["b-1-r1"] == {
        "tier": 1,
        "tierName": "example.com/rack",
        "members": [
            {
                "type": "Node",
                "selector": {"labelMatch": {"matchLabels": {"example.com/block": "B_1", "example.com/rack": "r1"}}},
            }
        ],
    }


def test_a_preset_has_the_labels_of_the_platform_and_needs_no_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    generate(preset="gke")
    (topology,) = written(capsys)
    assert [level["nodeLabel"] for level in topology["spec"]["levels"]] == [
        "cloud.google.com/gce-topology-block",
        "cloud.google.com/gce-topology-subblock",
        "cloud.google.com/gce-topology-host",
        "kubernetes.io/hostname",
    ]
    assert topology["spec"]["levels"][1]["alias"] == "subblock"


@pytest.mark.parametrize(
    ("labels", "layers"),
    [
        (
            {
                "fabric.topograph.run/tier-0": "a",
                "fabric.topograph.run/tier-2": "c",
                "fabric.topograph.run/tier-10": "x",
            },
            ["Tier10Layer", "Tier2Layer", "Tier0Layer", "NodeTopologyLayer"],
        ),
        (
            {"network.topology.nvidia.com/leaf": "a", "network.topology.nvidia.com/spine": "c"},
            ["SpineLayer", "LeafLayer", "NodeTopologyLayer"],
        ),
    ],
    ids=["1.0", "before"],
)
def test_the_tiers_of_topograph_are_those_that_nodes_have(
    labels: dict[str, str], layers: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "nodes.yaml").write_text(yaml.safe_dump(node("n1", labels)))
    generate(kind="koordinator", preset="topograph", files=[tmp_path])
    (topology,) = written(capsys)
    assert [layer["topologyLayer"] for layer in topology["spec"]["networkTopologySpec"]] == layers


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ({}, "generate from what"),
        ({"labels": "a", "preset": "aws"}, "generate from what"),
        ({"labels": "a,,b"}, "an empty label"),
        ({"labels": "a,b,a"}, "a is there twice"),
        ({"labels": "kubernetes.io/hostname,a"}, "can only be the lowest level"),
        ({"preset": "topograph"}, "no node has a label of topograph"),
        ({"labels": "a", "kind": "volcano"}, "give --file, or --live"),
    ],
)
def test_what_makes_no_topology_is_refused(asked: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        generate(**asked)


def test_a_label_that_no_node_has_is_refused_with_one_that_is_close(nodes: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no node has the label example.com/rak.*example.com/rack"):
        generate(labels="example.com/rak", files=[nodes])


def test_a_fabric_without_nodes_of_the_cluster_is_refused(nodes: Path, tmp_path: Path) -> None:
    (tmp_path / "fabric").write_text('Switch\t1 "S-1"\t\t# "sw"\n')
    with pytest.raises(ConfigurationError, match="no switch with a node of the cluster"):
        generate(from_ibnetdiscover=tmp_path / "fabric", files=[nodes])
