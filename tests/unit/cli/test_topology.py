"""`kai topology`: trees from manifests."""

import json
from pathlib import Path

import pytest
from kai_cli.topology import show
from kaicore.errors import ConfigurationError

NODES = "".join(
    f"""---
apiVersion: v1
kind: Node
metadata: {{name: {name}, labels: {{block: {block}, {rack}kubernetes.io/hostname: {name}}}}}
status: {{allocatable: {{cpu: "64", nvidia.com/gpu: "8"}}}}
"""
    for name, block, rack in (
        ("n1", "b1", "rack: r1, "),
        ("n2", "b1", "rack: r1, "),
        ("n3", "b1", "rack: r2, "),
        ("n4", "b2", "rack: r1, "),
        ("n5", "b2", ""),
    )
)
TOPOLOGY = """---
apiVersion: kueue.x-k8s.io/v1beta1
kind: Topology
metadata: {name: default}
spec: {levels: [{nodeLabel: block}, {nodeLabel: rack}, {nodeLabel: kubernetes.io/hostname}]}
"""
HYPER_NODES = """---
apiVersion: topology.volcano.sh/v1alpha1
kind: HyperNode
metadata: {name: s0}
spec: {tier: 1, members: [{type: Node, selector: {regexMatch: {pattern: "n[12]"}}}]}
---
apiVersion: topology.volcano.sh/v1alpha1
kind: HyperNode
metadata: {name: s1}
spec: {tier: 1, members: [{type: Node, selector: {exactMatch: {name: n2}}}]}
"""


def test_show_draws_domains_with_their_nodes_cpus_and_gpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "all.yaml").write_text(NODES + TOPOLOGY)
    assert show(tmp_path) == 0
    assert (
        capsys.readouterr().out
        == """\
Topology.kueue.x-k8s.io default
  1 of 5 nodes are in no domain of rack
DOMAIN     LEVEL   NODES   CPU   GPU
├─ b1      block   3       192   24
│  ├─ r1   rack    2       128   16
│  └─ r2   rack    1       64    8
└─ b2      block   2       128   16
   └─ r1   rack    1       64    8
"""
    )


def test_show_with_nodes_draws_the_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "all.yaml").write_text(NODES + TOPOLOGY)
    assert show(tmp_path, nodes=True) == 0
    assert "│  │  └─ n2   kubernetes.io/hostname   1       64    8\n" in capsys.readouterr().out


def test_show_as_json_says_every_domain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "all.yaml").write_text(NODES + TOPOLOGY)
    assert show(tmp_path, output="json") == 0
    (topology,) = json.loads(capsys.readouterr().out)["topologies"]
    assert [(level["name"], level["domains"], level["outside"]) for level in topology["levels"]] == [
        ("block", 2, 0),
        ("rack", 3, 1),
        ("kubernetes.io/hostname", 4, 1),
    ]
    assert topology["domains"][1]["domains"][0]["domains"] == [
        {"name": "n4", "level": "kubernetes.io/hostname", "nodes": 1, "cpu": 64000, "gpu": 8, "domains": []}
    ]


def test_show_of_overlapping_hyper_nodes_names_them_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "all.yaml").write_text(NODES + HYPER_NODES)
    assert show(tmp_path) == 1
    assert "Node n2 is in HyperNodes s0 and s1, of which none is in another" in capsys.readouterr().out


def test_show_of_a_topology_that_makes_no_sense_names_file_and_field(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(TOPOLOGY.replace("nodeLabel: rack", "nodeLabel: block"))
    with pytest.raises(ConfigurationError, match=r"bad.yaml, document 1: .*spec.levels\[1\].nodeLabel: is there twice"):
        show(tmp_path)


def test_show_without_a_topology_says_so(tmp_path: Path) -> None:
    (tmp_path / "nodes.yaml").write_text(NODES)
    with pytest.raises(ConfigurationError, match="no topology in"):
        show(tmp_path)
