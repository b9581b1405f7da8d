"""The scenes of the benchmarks, in small."""

from collections.abc import Callable
from functools import partial

from tests.given.cluster.factory import Cluster
from tests.measured.bench import cycle, engine, podrules
from tests.measured.digest.engine import Recorder

#: Nodes of each.
_NODES = 24


def _twice(recorder: Recorder, cluster: Cluster) -> None:
    """A cycle with much to do, one right after it, and one when all that was placed runs."""
    recorder.take_over(cluster)
    appended = recorder.decide()
    recorder.decide()
    for kind, body in appended:
        if kind == "PodPlaced":
            recorder.run(recorder.state.pods[body["uid"]].pod)
    recorder.now += 30_000_000
    recorder.decide()


def _shape(number: int, recorder: Recorder) -> None:
    _, cluster = engine.SHAPES[number](_NODES)
    _twice(recorder, cluster)


def _busy(recorder: Recorder) -> None:
    cluster = engine.busy(_NODES)
    engine.busy.cache_clear()
    _twice(recorder, cluster)


def _classes(recorder: Recorder) -> None:
    _twice(recorder, cycle.filled(_NODES, 200, classes=40))


def _rules(kind: str, recorder: Recorder) -> None:
    _twice(recorder, podrules.filled(_NODES, 100, apps=5, kind=kind))


SCENES: tuple[Callable[[Recorder], None], ...] = (
    *(partial(_shape, number) for number in range(len(engine.SHAPES))),
    _busy,
    _classes,
    *(partial(_rules, kind) for kind in ("anti-affinity by host", "spread over zones", "preferred affinity by host")),
)
