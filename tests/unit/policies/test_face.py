"""The face of policies: columns that cannot be changed, what was declared, and the points that a class defines."""

import numpy as np
import pytest
from kaicore.policy import NoArguments, Nodes, Point, Policy, Undeclared

NODES = Nodes(
    ("a", "b"),
    labels={"zone": np.array(["x", ""])},
    allocatable={"cpu": np.array([4000, 8000])},
    used={"cpu": np.array([1000, 9000])},
    inputs={"price": {"a": 7, "b": "unknown"}},
)


def test_columns_missing_or_written_to_are_zero_or_refuse() -> None:
    assert NODES.free("cpu").tolist() == [3000, -1000]
    assert NODES.allocatable("nvidia.com/gpu").tolist() == [0, 0]
    assert NODES.inputs("price", 5).tolist() == [7, 5]
    assert NODES.inputs("price", "?").tolist() == ["?", "unknown"]
    racks, places = NODES.domains("zone")
    assert (racks.tolist(), places.tolist()) == (["", "x"], [1, 0])
    for vector in (racks, places, NODES.labels("zone"), NODES.used("cpu"), NODES.free("cpu"), NODES.inputs("price")):
        with pytest.raises(ValueError, match="read-only"):
            vector[0] = 0


def test_facts_that_are_not_declared_are_refused_by_name() -> None:
    with pytest.raises(Undeclared, match="rack"):
        NODES.labels("rack")
    with pytest.raises(Undeclared, match="power"):
        NODES.inputs("power")
    with pytest.raises(Undeclared, match="tenants"):
        NODES.pods_of("team-a")


def test_points_are_those_that_a_class_defines_and_arguments_have_types() -> None:
    class SpotLast(Policy):
        name = "spot-last"

        class Arguments(NoArguments):
            weight: int = 500

        def score(self, nodes, work, facts):  # type: ignore[no-untyped-def]
            return np.full(len(nodes), self.arguments.weight)

    assert SpotLast.points() == {Point.SCORE}
    assert SpotLast().arguments.weight == 500
    assert SpotLast(SpotLast.Arguments(weight=3)).arguments.weight == 3
    with pytest.raises(ValueError, match="wait"):
        SpotLast.Arguments.model_validate({"wait": 3})
