"""Drive recorded scenarios through the product's own path, log events in, prediction out, and compare."""

from dataclasses import dataclass, field

from kaicore.rules.model.node import TopologyPolicy

from tests.fidelity.history import Knowledge, NodeHistory
from tests.fidelity.score import Score
from tests.fidelity.vectors import Record


@dataclass(slots=True)
class Judge:
    """Scores by policy and scope, and the disagreements.

    `incomplete` has the nodes, by scenario, of which the state said that something is unknown: since which position of
    the log, and for how many admissions.
    """

    knowledge: Knowledge = field(default_factory=Knowledge)
    scores: dict[tuple[str, str], Score] = field(default_factory=dict)
    disagreements: list[str] = field(default_factory=list)
    incomplete: dict[str, tuple[int, int]] = field(default_factory=dict)

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
        total = Score()
        for score in self.scores.values():
            total.add(score)
        return total

    def add(self, other: "Judge") -> None:
        """Add what another judged."""
        for key, score in other.scores.items():
            self.scores.setdefault(key, Score()).add(score)
        self.disagreements += other.disagreements
        self.incomplete |= other.incomplete

    def _admit(self, history: NodeHistory, scenario: Record, event: Record, score: Score) -> None:
        if not history.installed:
            if event["admit"]:
                history.admitted(event, None)
            return
        if event["node_fit"] and (gap := history.gap()) is not None:
            score.incomplete += 1
            since, count = self.incomplete.get(scenario["id"], (gap, 0))
            self.incomplete[scenario["id"]] = min(since, gap), count + 1
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
