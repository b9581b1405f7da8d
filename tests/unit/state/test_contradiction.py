"""The cases in which an observed placement contradicts its prediction."""

import msgspec
import pytest
from kaicore.rules.model.placement import ContainerPlacement, Placement, Provenance, SpanAmount, ZoneAmount
from kaicore.rules.state.pods.agreement import contradiction


def held(
    *zones: tuple[str, dict[str, int]],
    mask: tuple[str, ...] = (),
    uncertain: tuple[str, ...] = (),
    blocks: tuple[SpanAmount, ...] = (),
    spans: tuple[SpanAmount, ...] = (),
) -> Placement:
    amounts = tuple(ZoneAmount(zone, amount) for zone, amount in zones)
    container = ContainerPlacement("main", mask, amounts, spans, blocks, uncertain)
    return Placement(Provenance.PREDICTED, (container,))


WIDE = ("node-0", "node-1")
FAR = ("node-2", "node-3")
NIC = held(("node-0", {"gpu": 1, "nic": 1}))
SPLIT = held(("node-0", {"cpu": 4000}), ("node-1", {"cpu": 2000}), mask=WIDE, uncertain=("cpu",))
PERHAPS = held(
    ("node-0", {"cpu": 4000}), mask=("node-0",), uncertain=("cpu",), spans=(SpanAmount(("node-0",), {"cpu": 1000}),)
)
INIT = msgspec.structs.replace(held(("node-0", {"cpu": 1000})).containers[0], container="init")


def with_init(*zones: tuple[str, dict[str, int]], init: bool = True) -> Placement:
    """An exporter's report of a pod with an init container; without one, the prediction."""
    main = held(*zones).containers
    return Placement(Provenance.OBSERVED, (*main, INIT), ("init",)) if init else Placement(Provenance.PREDICTED, main)


BLOCK = SpanAmount(WIDE, {"memory": 30})
MEMORY = held(("node-0", {"memory": 20}), ("node-1", {"memory": 10}), mask=WIDE, blocks=(BLOCK,))


@pytest.mark.parametrize(
    ("predicted", "observed", "cause"),
    [
        pytest.param(held(("node-0", {"cpu": 1000})), held(("node-0", {"cpu": 1000})), None, id="as predicted"),
        pytest.param(held(("node-0", {"cpu": 1000})), held(("node-1", {"cpu": 1000})), "zones", id="elsewhere"),
        pytest.param(held(("node-0", {"cpu": 1000})), held(("node-0", {"cpu": 2000})), "amounts", id="more"),
        pytest.param(held(("node-0", {"cpu": 1000})), held(), "zones", id="nothing"),
        pytest.param(held(), held(("node-0", {"cpu": 1000})), "zones", id="nothing was predicted"),
        pytest.param(SPLIT, held(("node-0", {"cpu": 1000}), ("node-1", {"cpu": 5000})), None, id="open: other split"),
        pytest.param(SPLIT, held(("node-0", {"cpu": 1000})), "amounts", id="open: another sum"),
        pytest.param(SPLIT, held(("node-0", {"cpu": 4000}), ("node-2", {"cpu": 2000})), "zones", id="open: outside"),
        pytest.param(PERHAPS, held(("node-0", {"cpu": 4000})), None, id="perhaps: not kept"),
        pytest.param(PERHAPS, held(("node-0", {"cpu": 5000})), None, id="perhaps: kept"),
        pytest.param(PERHAPS, held(("node-0", {"cpu": 6000})), "amounts", id="perhaps: more than that"),
        pytest.param(PERHAPS, held(("node-1", {"cpu": 4000})), "zones", id="perhaps: elsewhere"),
        pytest.param(PERHAPS, PERHAPS, None, id="perhaps: the same"),
        pytest.param(
            with_init(("node-0", {"cpu": 2000}), init=False),
            with_init(("node-0", {"cpu": 2000})),
            "InitKept",
            id="an init container kept what was to be taken over",
        ),
        pytest.param(
            SPLIT,
            with_init(("node-0", {"cpu": 3000}), ("node-1", {"cpu": 3000})),
            "InitKept",
            id="open: an init container kept more",
        ),
        pytest.param(
            SPLIT, with_init(("node-0", {"cpu": 3000})), "amounts", id="open: the main container has less, too"
        ),
        pytest.param(
            with_init(("node-0", {"cpu": 2000}), init=False),
            with_init(("node-1", {"cpu": 2000})),
            "zones",
            id="the main container is elsewhere, too",
        ),
        pytest.param(MEMORY, held(spans=(BLOCK,)), None, id="a block of two zones is known by its zones"),
        pytest.param(
            NIC, held(("node-0", {"gpu": 1}), spans=(SpanAmount(WIDE, {"nic": 1}),)), None, id="reached by two"
        ),
        pytest.param(NIC, held(("node-0", {"gpu": 1}), spans=(SpanAmount(FAR, {"nic": 1}),)), "zones", id="by others"),
        pytest.param(NIC, held(("node-0", {"gpu": 1}), spans=(SpanAmount(WIDE, {"nic": 2}),)), "zones", id="two of it"),
        pytest.param(MEMORY, held(("node-0", {"memory": 30})), "zones", id="a block of one zone instead"),
    ],
)
def test_contradiction_between_prediction_and_observation_is_found(
    predicted: Placement, observed: Placement, cause: str | None
) -> None:
    assert contradiction(predicted, observed) == cause
