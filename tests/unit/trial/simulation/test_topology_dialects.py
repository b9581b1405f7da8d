"""One request in the words of five dialects, as the documents have them: pods get the same nodes."""

from pathlib import Path

import pytest
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.topology.placing.request import TopologyStrategy

from tests.given.logs.simulating import brief, document_of, world_of

FOLDER = Path(__file__).parents[4] / "docs" / "how-to" / "topologies"
DIALECTS = ("kai", "kueue", "koordinator", "volcano", "kubernetes")


def placed(dialect: str, folder: Path, config: EngineConfig) -> dict[str, str]:
    texts = [(FOLDER / f"{name}.yaml").read_text() for name in ("nodes", dialect)]
    found = brief(document_of(world_of("\n---\n".join(texts), folder), config))
    return {name: node for name, node in found.items() if name != "running"}


@pytest.mark.parametrize("strategy", TopologyStrategy)
def test_by_each_strategy_dialects_agree(strategy: TopologyStrategy, tmp_path: Path) -> None:
    config = EngineConfig(topology_strategy=strategy)
    nodes = [placed(dialect, tmp_path, config) for dialect in DIALECTS]
    assert all("Pending" not in node for node in nodes[0].values())
    if strategy is EngineConfig().topology_strategy:
        assert nodes[0] == {f"p{number}": f"b0-r1-n{number // 2}" for number in range(4)}
    assert all(one == nodes[0] for one in nodes[1:])
