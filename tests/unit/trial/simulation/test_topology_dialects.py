"""One request in the words of five dialects: pods get the same nodes."""

from pathlib import Path

import pytest
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.topology.placing.request import TopologyStrategy

from tests.given.logs.simulating import brief, document_of, world_of

FOLDER = Path(__file__).parents[4] / "docs" / "how-to" / "topologies"
DIALECTS = ("kai", "kueue", "koordinator", "volcano", "kubernetes")


def placed(dialect: str, folder: Path, config: EngineConfig | None = None) -> dict[str, str]:
    texts = [(FOLDER / f"{name}.yaml").read_text() for name in ("nodes", dialect)]
    found = brief(document_of(world_of("\n---\n".join(texts), folder), config))
    return {name: node for name, node in found.items() if name != "running"}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_same_request_gets_the_same_nodes(dialect: str, tmp_path: Path) -> None:
    rack = "b0-r1"
    assert placed(dialect, tmp_path) == {
        "p0": f"{rack}-n0",
        "p1": f"{rack}-n0",
        "p2": f"{rack}-n1",
        "p3": f"{rack}-n1",
    }


@pytest.mark.parametrize("strategy", TopologyStrategy)
def test_by_each_strategy_dialects_agree(strategy: TopologyStrategy, tmp_path: Path) -> None:
    config = EngineConfig(topology_strategy=strategy)
    nodes = [placed(dialect, tmp_path, config) for dialect in DIALECTS]
    assert all("Pending" not in node for node in nodes[0].values())
    assert all(one == nodes[0] for one in nodes[1:])
