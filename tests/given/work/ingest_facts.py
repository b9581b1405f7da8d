"""Facts about pods as ingest needs them in a log."""

from typing import Any

from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.events import payloads
from kaicore.rules.model.placement import OBSERVED_ANNOTATION, ContainerPlacement, Placement, Provenance, ZoneAmount
from kaicore.rules.model.pod import Pod

from tests.given.cluster.factory import pod
from tests.given.processes.waiting import until_payloads


def seen(name: str, node: str = "n1", **fields: Any) -> tuple[str, payloads.Payload]:
    """The watcher sees a pod on a node."""
    one = pod(name, cpu=8, memory=8, gpu=2, node_name=node, **fields)
    return f"pod/{one.uid}", payloads.PodObserved(one)


def annotated(name: str, text: str, **fields: Any) -> tuple[str, payloads.Payload]:
    return seen(name, annotations={OBSERVED_ANNOTATION: text}, **fields)


def gone(name: str, uid: str = "") -> tuple[str, payloads.Payload]:
    uid = uid or f"uid-{name}"
    return f"pod/{uid}", payloads.PodDeleted(uid, "default", name)


def decided(one: Pod, node: str) -> tuple[tuple[str, payloads.Payload], ...]:
    placement = Placement(
        Provenance.PREDICTED, (ContainerPlacement("main", zones=(ZoneAmount("node-0", {"cpu": 1}),)),)
    )
    ids = (one.uid, one.namespace, one.name, node)
    return (
        (f"pod/{one.uid}", payloads.PodObserved(one)),
        (f"pod/{one.uid}", payloads.PodPlaced(*ids, "c/1", "class", placement)),
        (f"pod/{one.uid}", payloads.PodBound(*ids)),
    )


async def missed(log: PostgresLog, cluster: str, count: int) -> list[payloads.PredictionMissed]:
    return await until_payloads(log, cluster, "PredictionMissed", holds=lambda missed: len(missed) >= count)
