"""`kai topology`: trees, and what is free in them."""

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from kai_cli.topology.show import show
from kaicore.errors import ConfigurationError, UnknownSubject

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


PODS = """---
apiVersion: v1
kind: Pod
metadata: {name: p, namespace: default}
spec: {nodeName: n1, containers: [{name: c, resources: {requests: {cpu: "16"}, limits: {nvidia.com/gpu: "2"}}}]}
status: {phase: Running}
"""


@pytest.fixture
def manifests(tmp_path: Path) -> Path:
    (tmp_path / "all.yaml").write_text(NODES + TOPOLOGY + PODS)
    return tmp_path


def test_show_draws_what_domains_use_and_have_free(manifests: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show(manifests, segments="1,2") == 0
    assert (
        capsys.readouterr().out
        == """\
Topology.kueue.x-k8s.io default, 5 nodes
  1 of 5 nodes are in no domain of rack
LEVEL                    DOMAINS   IDLE SEGMENTS
block                    2         4x1 2x2
rack                     3         3x1
kubernetes.io/hostname   4         3x1

DOMAIN     LEVEL   NODES   IDLE   CPU USED+FREE   MEMORY USED+FREE   GPU USED+FREE   IDLE SEGMENTS
├─ b1      block   3       2      16+176          0+0                2+22            2x1 1x2
│  ├─ r1   rack    2       1      16+112          0+0                2+14            1x1
│  └─ r2   rack    1       1      0+64            0+0                0+8             1x1
└─ b2      block   2       2      0+128           0+0                0+16            2x1 1x2
   └─ r1   rack    1       1      0+64            0+0                0+8             1x1
"""
    )


def test_show_with_nodes_draws_the_nodes(manifests: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show(manifests, nodes=True) == 0
    assert "│  │  └─ n2   kubernetes.io/hostname   1       1      0+64 " in capsys.readouterr().out


def test_show_with_slots_names_the_domain_that_takes_most(manifests: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show(manifests, slots="gpu=4,cpu=8") == 0
    output = capsys.readouterr().out
    assert output.startswith("a slot is cpu 8, gpu 4\n")
    assert "rack                     3         7       3 in b1/r1\n" in output


def test_show_counts_slots_like_the_pod_of_a_manifest(
    manifests: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path_factory.mktemp("pod") / "job.yaml"
    file.write_text(
        "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\nspec: {template: {spec: {restartPolicy: Never, "
        "nodeSelector: {block: b2}, containers: [{name: c, env: [{name: A, value: B}], resources: {limits: "
        '{nvidia.com/gpu: "4"}}}]}}}\n'
    )
    assert show(manifests, pod=file, output="json") == 0
    (topology,) = json.loads(capsys.readouterr().out)["topologies"]
    assert [domain["slots"] for domain in topology["domains"]] == [0, 4]


def test_show_of_a_domain_draws_only_what_is_in_it(manifests: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show(manifests, domain="b2/r1", nodes=True) == 0
    drawn = capsys.readouterr().out.partition("DOMAIN ")[2].splitlines()[1:]
    assert [line.split()[1] for line in drawn] == ["r1", "n4"]
    with pytest.raises(ConfigurationError, match="--domain r1: there are 2 of that name: b1/r1, b2/r1"):
        show(manifests, domain="r1")
    with pytest.raises(UnknownSubject, match="no domain 'b3'"):
        show(manifests, domain="b3")


def test_show_down_to_a_level_draws_nothing_below_it(manifests: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show(manifests, level="block") == 0
    drawn = capsys.readouterr().out.partition("DOMAIN ")[2].splitlines()[1:]
    assert [line.split()[1] for line in drawn] == ["b1", "b2"]
    with pytest.raises(UnknownSubject, match=r"no level 'rak'; did you mean 'rack'\? \(there are: block, rack,"):
        show(manifests, level="rak")


def test_show_of_too_many_domains_says_what_it_leaves_out(manifests: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show(manifests, limit=4) == 0
    output = capsys.readouterr().out
    assert output.endswith("(and 3 domains of rack: --level rack draws them, --domain NAME one domain)\n")
    assert show(manifests, limit=1) == 0
    assert capsys.readouterr().out.endswith("one domain)\n")
    (manifests / "all.yaml").write_text(NODES + TOPOLOGY.replace("{nodeLabel: rack}, ", ""))
    assert show(manifests, limit=1) == 0
    assert capsys.readouterr().out.endswith("(and 1 more; --limit 0 draws all)\n")


def test_show_as_json_says_every_domain(manifests: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show(manifests, output="json", nodes=True) == 0
    (topology,) = json.loads(capsys.readouterr().out)["topologies"]
    assert [(level["name"], level["domains"], level["outside"]) for level in topology["levels"]] == [
        ("block", 2, 0),
        ("rack", 3, 1),
        ("kubernetes.io/hostname", 4, 1),
    ]
    (node,) = topology["domains"][1]["domains"][0]["domains"]
    assert (node["name"], node["nodes"], node["idle"], node["resources"][0]) == (
        "n4",
        1,
        1,
        {"resource": "cpu", "allocatable": "64", "used": "0", "free": "64"},
    )


def test_show_as_svg_is_one_document_with_a_square_for_each_node(
    manifests: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show(manifests, output="svg") == 0
    drawing = ET.fromstring(capsys.readouterr().out)
    titles = [title.text or "" for title in drawing.iter("{http://www.w3.org/2000/svg}title")]
    assert sum(title.startswith("kubernetes.io/hostname ") for title in titles) == 4
    assert (
        "rack r1: 2 nodes, 2 available, 1 idle; cpu 16 used, 112 free; memory 0 used, 0 free; gpu 2 used, 14 free"
        in titles
    )
    width, height = float(drawing.attrib["width"]), float(drawing.attrib["height"])
    for square in drawing.iter("{http://www.w3.org/2000/svg}rect"):
        if "x" in square.attrib:
            assert float(square.attrib["x"]) + float(square.attrib["width"]) <= width
            assert float(square.attrib["y"]) + float(square.attrib["height"]) <= height


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
