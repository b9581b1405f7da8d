"""Drive a recorded scenario through the product's own path, log events in, prediction out, and compare."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from kaicore.events import payloads
from kaicore.model.node import TopologyPolicy
from kaicore.model.placement import Placement
from kaicore.numa.admission import admitted, predict

from tests.fidelity.vectors import Record, masks_of, node_of, observed_of, pod_of, topology_of
from tests.ledger import Ledger


@dataclass(slots=True)
class Score:
    """Counts for one policy and scope.

    Attributes:
        admits: pods that pass the whole-node check and were judged.
        agreed: of them, those with the kubelet's verdict.
        wrong_admits: predicted to be admitted, and rejected.
        wrong_rejects: predicted to be rejected, and admitted.
        masks, masks_agreed: admitted pods whose stored masks could be compared, and those that are equal.
    """

    admits: int = 0
    agreed: int = 0
    wrong_admits: int = 0
    wrong_rejects: int = 0
    masks: int = 0
    masks_agreed: int = 0


@dataclass(slots=True)
class Judge:
    """Scores by policy and scope, and the disagreements."""

    scores: dict[tuple[str, str], Score] = field(default_factory=dict)
    disagreements: list[str] = field(default_factory=list)
    by_tag: Counter[str] = field(default_factory=Counter)

    def run(self, scenario: Record) -> None:
        """Judge every admission of one scenario."""
        ledger = Ledger()
        ledger.record("node/node", payloads.NodeObserved(node_of(scenario)))
        topology = topology_of(scenario, scenario["initial_available"], 1)
        ledger.record("nrt/node", payloads.TopologyObserved(topology))
        policy = scenario["node"]["topology_policy"]
        scope = scenario["node"]["topology_scope"] if policy != TopologyPolicy.NONE else "-"
        for number, event in enumerate(scenario["events"], start=2):
            if event["op"] == "admit":
                self._admit(ledger, scenario, event, self.scores.setdefault((policy, scope), Score()))
            elif event["op"] == "remove":
                ledger.record(f"pod/{event['pod']}", payloads.PodDeleted(event["pod"], "default", event["pod"]))
            if "available" in event:
                update = topology_of(scenario, event["available"], number)
                ledger.record("nrt/node", payloads.TopologyObserved(update))

    def _admit(self, ledger: Ledger, scenario: Record, event: Record, score: Score) -> None:
        uid = event["pod"]
        stream = f"pod/{uid}"
        ledger.record(stream, payloads.PodObserved(pod_of(event)))
        columns = ledger.state.columns
        row = columns.rows["node"]
        aligned = ledger.state.classes[ledger.state.pods[uid].class_key].aligned
        admit = bool(admitted(columns.zones, np.array([row]), aligned)[0])
        node = columns.topologies[row]
        assert node is not None
        names = tuple(zone.name for zone in node.zones)
        predicted = predict(columns.zones, row, aligned, zone_names=names) if admit else None
        if event["node_fit"]:
            self._judge(scenario, event, admit, predicted.placement if predicted else None, score)
        if not event["admit"]:
            failed = pod_of(event, node_name="node", phase="Failed", reason=event["reason"])
            ledger.record(stream, payloads.PodObserved(failed))
            rejected = payloads.PodRejected(uid, "default", uid, "node", event["reason"], event.get("message", ""))
            ledger.record(stream, rejected)
            return
        if admit:
            placement = predicted.placement if predicted else None
            key = ledger.state.pods[uid].class_key
            ledger.record(stream, payloads.PodPlaced(uid, "default", uid, "node", "test/1", key, placement))
        ledger.record(stream, payloads.PodObserved(pod_of(event, node_name="node", phase="Running")))
        observed = payloads.PlacementObserved(uid, "default", uid, "node", observed_of(event))
        ledger.record(stream, observed)

    def _judge(self, scenario: Record, event: Record, admit: bool, placement: Placement | None, score: Score) -> None:
        score.admits += 1
        if admit == event["admit"]:
            score.agreed += 1
        else:
            score.wrong_admits += admit
            score.wrong_rejects += not admit
            verdict = event["admit"] or f"{event['reason']}: {event['message']}"
            self.disagreements.append(
                f"{scenario['id']} {event['pod']} ({event['qos']}, {','.join(event.get('tags', ()))}): "
                f"predicted {'admit' if admit else 'reject'}, kubelet: {verdict}"
            )
            for tag in [*scenario["tags"], *event.get("tags", ()), event["qos"], scenario["profile"]]:
                self.by_tag[tag] += 1
        if admit and event["admit"] and scenario["node"]["topology_scope"] == "container":
            predicted = {
                item.container: sum(1 << int(zone.removeprefix("node-")) for zone in item.mask)
                for item in (placement.containers if placement else ())
            }
            kinds = {item["name"]: item["kind"] for item in event["containers"]}
            stored = {name: mask for name, mask in masks_of(event).items() if kinds[name] != "init"}
            compared = {name: mask for name, mask in stored.items() if name in predicted}
            score.masks += bool(compared)
            score.masks_agreed += bool(compared) and all(predicted[name] == mask for name, mask in compared.items())
