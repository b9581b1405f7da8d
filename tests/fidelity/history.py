"""One recorded node as a scheduler's log knows it: events in, state, prediction out."""

from dataclasses import dataclass

from kaicore.rules.engine.config import EngineConfig, Evaluator
from kaicore.rules.engine.constraints.zones.numa_verdicts import NumaVerdicts, configure_kubelets
from kaicore.rules.events import payloads
from kaicore.rules.numa.kubelet.verdict import Admitted, PredictedPlacement, Rejected, predicted_placement

from tests.fidelity.vectors import Record, node_of, observed_of, override_of, pod_of, topology_of
from tests.given.logs.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Knowledge:
    """The facts that a scheduler has.

    Attributes:
        evaluator: the rule that predicts.
        observed: whether a placement exporter reports what pods hold.
        published: whether the NodeResourceTopology is kept up to date.
        reconstruct: see `EngineConfig.reconstruct_available`.
        settled: whether, without an exporter, the log learns what pods hold of which the prediction left a split open:
            the kubelet takes devices and CPUs of several zones in the order of a Go map, or by cores nothing reports.
        cautious: whether the verdict is judged that a cycle acts on, which refuses what may not fit, instead of the
            likeliest.
        since: the share of a scenario's events, in per cent, that happened before the scheduler was installed.
    """

    evaluator: Evaluator = Evaluator.KUBELET
    observed: bool = True
    published: bool = True
    reconstruct: bool = True
    since: int = 0
    settled: bool = False
    cautious: bool = False


@dataclass(frozen=True, slots=True)
class Prediction:
    """The verdict on a pod, and what it would leave behind."""

    verdict: Admitted | Rejected
    placement: PredictedPlacement | None


class NodeHistory:
    """The log of a cluster of one node, and what it predicts."""

    def __init__(self, scenario: Record, knowledge: Knowledge) -> None:
        self._scenario = scenario
        self._knowledge = knowledge
        self._config = EngineConfig(
            kubelets=(override_of(scenario),),
            evaluator=knowledge.evaluator,
            reconstruct_available=knowledge.reconstruct,
        )
        self._ledger = Ledger()
        self._pods: dict[str, Record] = {}
        self._available = scenario["initial_available"]
        self._zones = [f"node-{zone}" for zone in range(scenario["node"]["zones"])]
        self.installed = False

    def install(self) -> None:
        """Let the scheduler see the cluster as it is by now."""
        self.installed = True
        self._ledger.record("node/node", payloads.NodeObserved(node_of(self._scenario)))
        self._publish()
        for event in self._pods.values():
            self._run(event, started=True)

    def predict(self, event: Record) -> Prediction:
        uid, state = event["pod"], self._ledger.state
        self._ledger.record(f"pod/{uid}", payloads.PodObserved(pod_of(event)))
        columns = state.columns.copy()
        configure_kubelets(columns, self._config)
        verdicts = NumaVerdicts(columns, state.classes[state.pods[uid].class_key], self._config)
        row = columns.rows["node"]
        if self._knowledge.cautious:
            return Prediction(verdicts.verdict(row), verdicts.predict(row))
        likeliest = verdicts.likeliest(row)
        placement = predicted_placement(likeliest, self._zones) if isinstance(likeliest, Admitted) else None
        return Prediction(likeliest, placement)

    def admitted(self, event: Record, prediction: Prediction | None) -> None:
        """Record what the log learns of a pod that the kubelet took."""
        self._pods[event["pod"]] = event
        if not self.installed:
            return
        if prediction is not None and isinstance(prediction.verdict, Admitted):
            self._place(event, prediction)
        started = not any(item["kind"] == "init" for item in event["containers"])
        self._run(event, started=started, is_open=_leaves_open(prediction))

    def rejected(self, event: Record, prediction: Prediction) -> None:
        """Record what the log learns of a pod that the kubelet refused."""
        uid = event["pod"]
        if isinstance(prediction.verdict, Admitted):
            self._place(event, prediction)
        failed = pod_of(event, node_name="node", phase="Failed", reason=event["reason"])
        self._ledger.record(f"pod/{uid}", payloads.PodObserved(failed))
        rejected = payloads.PodRejected(uid, "default", uid, "node", event["reason"], event.get("message", ""))
        self._ledger.record(f"pod/{uid}", rejected)

    def started(self, event: Record) -> None:
        """The pod's init containers are done."""
        admitted = self._pods[event["pod"]]
        if self.installed:
            running = pod_of(admitted, node_name="node", phase="Running")
            self._ledger.record(f"pod/{event['pod']}", payloads.PodObserved(running))

    def removed(self, event: Record) -> None:
        uid = event["pod"]
        self._pods.pop(uid, None)
        if self.installed:
            self._ledger.record(f"pod/{uid}", payloads.PodDeleted(uid, "default", uid))

    def published(self, event: Record) -> None:
        """The exporter publishes what it sees free."""
        self._available = event.get("available", self._available)
        if self.installed and self._knowledge.published:
            self._publish()

    def gap(self) -> int | None:
        """Since when the log does not tell all that is held of the zones."""
        return next((entry.charged_at for entry in self._ledger.partly_unknown("node")), None)

    def _publish(self) -> None:
        topology = topology_of(self._scenario, self._available, len(self._ledger.events))
        self._ledger.record("nrt/node", payloads.TopologyObserved(topology))

    def _place(self, event: Record, prediction: Prediction) -> None:
        uid = event["pod"]
        key = self._ledger.state.pods[uid].class_key
        placement = None if prediction.placement is None else prediction.placement.placement
        self._ledger.record(f"pod/{uid}", payloads.PodPlaced(uid, "default", uid, "node", "test/1", key, placement))

    def _run(self, event: Record, *, started: bool, is_open: bool = False) -> None:
        uid = event["pod"]
        running = pod_of(event, node_name="node", phase="Running" if started else "Pending")
        self._ledger.record(f"pod/{uid}", payloads.PodObserved(running))
        if self._knowledge.observed or (self._knowledge.settled and is_open):
            observed = observed_of(self._scenario, event)
            self._ledger.record(f"pod/{uid}", payloads.PlacementObserved(uid, "default", uid, "node", observed))


def _leaves_open(prediction: Prediction | None) -> bool:
    """Tell whether a prediction leaves open where a container holds something."""
    if prediction is None or prediction.placement is None:
        return False
    return any(container.uncertain for container in prediction.placement.placement.containers)
