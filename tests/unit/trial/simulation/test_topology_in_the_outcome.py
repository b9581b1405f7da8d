"""The answers of `kai simulate` about topologies: places of pods in them, and their problems."""

from pathlib import Path

import pytest
from kai_cli.trials.simulate import simulate_command

from tests.given.logs.simulating import document_of, node, pod, world_of

FOLDER = Path(__file__).parents[4] / "docs" / "how-to" / "topologies"

HYPER_NODE = """---
apiVersion: topology.volcano.sh/v1alpha1
kind: HyperNode
metadata: {{name: {name}}}
spec: {{tier: {tier}, members: [{members}]}}
"""


def hyper_node(name: str, tier: int, kind: str, *members: str) -> str:
    listed = ", ".join(f"{{type: {kind}, selector: {{exactMatch: {{name: {one}}}}}}}" for one in members)
    return HYPER_NODE.format(name=name, tier=tier, members=listed)


def test_placed_pod_has_its_rank_and_its_domain_at_each_level(tmp_path: Path) -> None:
    text = "\n---\n".join((FOLDER / f"{name}.yaml").read_text() for name in ("nodes", "volcano"))
    pods = {one["name"]: one for one in document_of(world_of(text, tmp_path))["pods"]}
    assert pods["p2"]["domains"] == {"2": "b0", "1": "b0-r1", "node": "b0-r1-n1"}
    assert sorted(pods[name]["rank"] for name in ("p0", "p1", "p2", "p3")) == [0, 1, 2, 3]
    assert (pods["running"]["rank"], pods["running"]["domains"]) == (None, {})


def test_table_has_places_in_the_topology_where_a_pod_has_one(capsys: pytest.CaptureFixture[str]) -> None:
    simulate_command(FOLDER / "nodes.yaml", FOLDER / "volcano.yaml")
    header, first, *_ = capsys.readouterr().out.splitlines()
    assert header.split() == ["NAMESPACE", "POD", "PHASE", "NODE", "ZONES", "TOPOLOGY"]
    assert first.endswith("b0/b0-r1, rank 0")
    simulate_command(FOLDER / "nodes.yaml")
    assert "TOPOLOGY" not in capsys.readouterr().out


def test_hyper_nodes_that_are_wrong_are_warned_of(tmp_path: Path) -> None:
    members = hyper_node("r0", 1, "Node", "n1") + hyper_node("r1", 1, "Node", "n1")
    overlap = world_of(node() + pod("a") + members, tmp_path)
    assert [one["phase"] for one in document_of(overlap)["pods"]] == ["Bound"]
    assert overlap.warnings == ["HyperNodes: Node n1 is in HyperNodes r0 and r1, of which none is in another"]
    above = hyper_node("s0", 2, "HyperNode", "r0") + hyper_node("s1", 2, "HyperNode", "r0")
    two_parents = world_of(node() + hyper_node("r0", 1, "Node", "n1") + above, tmp_path)
    document_of(two_parents)
    assert two_parents.warnings == ["HyperNodes: HyperNode r0 is a member of s0 and of s1; it may have one parent only"]


@pytest.mark.parametrize("output", ["table", "json"])
def test_warnings_of_topologies_are_lines_on_standard_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], output: str
) -> None:
    file = tmp_path / "m.yaml"
    file.write_text(node() + hyper_node("r0", 1, "Node", "n1") + hyper_node("r1", 1, "Node", "n1"))
    simulate_command(file, output=output)  # type: ignore[arg-type]
    said = capsys.readouterr()
    assert said.err == "kai: warning: HyperNodes: Node n1 is in HyperNodes r0 and r1, of which none is in another\n"
    assert "HyperNodes" not in said.out
