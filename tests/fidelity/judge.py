"""Drive recorded scenarios through the product's own path, log events in, prediction out, and compare."""

from dataclasses import dataclass, field

from kaicore.model.node import TopologyPolicy

from tests.fidelity.history import Knowledge, NodeHistory
from tests.fidelity.score import Score
from tests.fidelity.vectors import Record


@dataclass(slots=True)
class Judge:
    """Scores by policy and scope, and the disagreements."""

    knowledge: Knowledge = field(default_factory=Knowledge)
    scores: dict[tuple[str, str], Score] = field(default_factory=dict)
    disagreements: list[str] = field(default_factory=list)

    def run(self, scenario: Record) -> None:
        """Judge every admission of one scenario."""
        node = scenario["node"]
        policy = node["topology_policy"]
        scope = node["topology_scope"] if policy != TopologyPolicy.NONE else "-"
        score = self.scores.setdefault((policy, scope), Score())
        history = NodeHistory(scenario, self.knowledge)
        first = len(scenario["events"]) * self.knowledge.since // 100
        for number, event in enumerate(scenario["events"]):
            if number == first:
                history.install()
            match event["op"]:
                case "admit":
                    self._admit(history, scenario, event, score)
                case "start":
                    history.started(event)
                case "remove":
                    history.removed(event)
            history.published(event)

    def total(self) -> Score:
        """The sum of all scores."""
        total = Score()
        for score in self.scores.values():
            total.add(score)
        return total

    def _admit(self, history: NodeHistory, scenario: Record, event: Record, score: Score) -> None:
        if not history.installed:
            if event["admit"]:
                history.admitted(event, None)
            return
        score.incomplete += event["node_fit"] and history.incomplete()
        prediction = history.predict(event)
        if event["node_fit"]:
            tags = ",".join([event["qos"], *event.get("tags", ()), *scenario["tags"]])
            self.disagreements += [
                f"{scenario['id']} {event['pod']} ({tags}): {wrong}"
                for wrong in score.judge(scenario, event, prediction)
            ]
        if event["admit"]:
            history.admitted(event, prediction)
        else:
            history.rejected(event, prediction)
