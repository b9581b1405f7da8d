"""Counts of agreement, per policy and scope."""

from dataclasses import dataclass, fields

from kaicore.rules.model.quantity import is_memory
from kaicore.rules.numa.kubelet.verdict import Admitted, Rejected

from tests.fidelity.history import Prediction
from tests.fidelity.vectors import Record


@dataclass(slots=True)
class Score:
    """Counts; of every `x` those that agree are `x_agreed`.

    Attributes:
        admits: pods that pass the whole-node check.
        wrong_admits: predicted to be admitted, and rejected.
        wrong_rejects: predicted to be rejected, and admitted.
        reasons: rejections.
        masks: containers of pods that both admit, with a merged hint that the kubelet stored.
        memory: pods with memory of zones: what each zone gives, and each block's zones and size.
        cpu_splits: containers with CPUs from more than one zone.
        device_splits: container and resource with devices from more than one zone.
        certain: CPU and device amounts, per container, of which the record says no uncertainty.
        incomplete: predictions made where the state says that its history is incomplete.
    """

    admits: int = 0
    admits_agreed: int = 0
    wrong_admits: int = 0
    wrong_rejects: int = 0
    reasons: int = 0
    reasons_agreed: int = 0
    masks: int = 0
    masks_agreed: int = 0
    memory: int = 0
    memory_agreed: int = 0
    cpu_splits: int = 0
    cpu_splits_agreed: int = 0
    device_splits: int = 0
    device_splits_agreed: int = 0
    certain: int = 0
    certain_agreed: int = 0
    incomplete: int = 0

    def add(self, other: "Score") -> None:
        """Add another's counts."""
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))

    def _count(self, name: str, *, agreed: bool) -> bool:
        setattr(self, name, getattr(self, name) + 1)
        setattr(self, f"{name}_agreed", getattr(self, f"{name}_agreed") + agreed)
        return agreed

    def judge(self, scenario: Record, event: Record, prediction: Prediction) -> list[str]:
        verdict = prediction.verdict
        admit = isinstance(verdict, Admitted)
        wrong = []
        predicted = "admit" if isinstance(verdict, Admitted) else f"{verdict.reason}: {verdict.message}"
        kubelet = "admit" if event["admit"] else f"{event['reason']}: {event['message']}"
        if not self._count("admits", agreed=admit == event["admit"]):
            self.wrong_admits += admit
            self.wrong_rejects += not admit
            wrong.append(f"verdict: predicted {predicted}; kubelet: {kubelet}")
        if not event["admit"]:
            right = isinstance(verdict, Rejected) and verdict.reason == event["reason"]
            if not self._count("reasons", agreed=right) and isinstance(verdict, Rejected):
                wrong.append(f"reason: predicted {predicted}; kubelet: {kubelet}")
        if isinstance(verdict, Admitted) and event["admit"]:
            wrong += self._judge_placement(scenario, event, verdict)
        return wrong

    def _judge_placement(self, scenario: Record, event: Record, verdict: Admitted) -> list[str]:
        wrong = []
        init = {item["name"] for item in event["containers"] if item["kind"] == "init"}
        holdings = {holding.container.name: holding for holding in verdict.holdings}
        zones = scenario["node"]["zones"]
        for item in event["alloc"]:
            name, holding = item["name"], holdings.get(item["name"])
            if holdings and scenario["node"]["topology_policy"] != "none":
                mask = _mask(item["affinity"] or ())
                predicted = holding.mask if holding is not None else -1
                if not self._count("masks", agreed=mask == predicted):
                    wrong.append(f"mask of {name}: predicted {predicted:b}; kubelet: {mask:b}")
            if name in init or holding is None:
                continue
            for resource, amounts in item.get("amounts", {}).items():
                if not any(amounts) or (resource != "cpu" and not _plain(scenario, resource)):
                    continue
                guess = holding.amounts.get(resource, [0] * zones)
                if sum(amount > 0 for amount in amounts) > 1:
                    kind = "cpu_splits" if resource == "cpu" else "device_splits"
                    self._count(kind, agreed=guess == amounts)
                if resource not in holding.uncertain and not self._count("certain", agreed=guess == amounts):
                    wrong.append(f"{resource} of {name}: predicted {guess}; kubelet: {amounts}")
        return wrong + self._judge_memory(event, verdict, zones)

    def _judge_memory(self, event: Record, verdict: Admitted, zones: int) -> list[str]:
        kept = {resource: amounts for resource, amounts in event["placement"].items() if is_memory(resource)}
        blocks = sorted(
            (item["name"], block["type"], _mask(block["numa"]), block["size"])
            for item in event["alloc"]
            for block in item.get("memory", ())
        )
        if not blocks:
            return []
        guess: dict[str, list[int]] = {}
        for holding in verdict.holdings:
            for block in holding.blocks:
                for zone, amount in block.drawn:
                    guess.setdefault(block.resource, [0] * zones)[zone] += amount
        guessed_blocks = sorted(
            (holding.container.name, block.resource, block.mask, block.size)
            for holding in verdict.holdings
            for block in holding.blocks
        )
        held = {resource: amounts for resource, amounts in kept.items() if any(amounts)}
        if self._count("memory", agreed=guess == held and guessed_blocks == blocks):
            return []
        return [f"memory: predicted {guess} {guessed_blocks}; kubelet: {held} {blocks}"]


def _mask(zones: list[int] | tuple[int, ...]) -> int:
    return sum(1 << zone for zone in zones)


def _plain(scenario: Record, resource: str) -> bool:
    """True if every device of a resource is of one zone: of others counts per zone say nothing."""
    return all(len(device["numa"]) == 1 for device in scenario["node"]["devices"].get(resource, ()))
