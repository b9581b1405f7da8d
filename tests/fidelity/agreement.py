"""The agreement of the recordings in `recorded/` with our models: `python -m tests.fidelity.agreement` writes it down.

`docs/reference/kubelets.md` shows it. Each recording is also judged by the model of the minor version before, for that
tells what the changes of its version are worth.
"""

import sys
from pathlib import Path

import msgspec

from tests.fidelity.history import Knowledge
from tests.fidelity.judge import Judge
from tests.fidelity.kubelet_recorder import RECORDED
from tests.fidelity.vectors import read_vectors

AGREEMENT = RECORDED / "agreement.json"


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one recording; of every `x` those that agree are `x_agreed`."""

    version: str
    scenarios: int
    verdicts: int
    verdicts_agreed: int
    masks: int
    masks_agreed: int
    memory: int
    memory_agreed: int
    amounts: int
    amounts_agreed: int
    agreed_with_the_version_before: int


def agreement_of(file: Path) -> Agreement:
    version = file.name.removeprefix("kubelet-").removesuffix(".jsonl.gz")
    scenarios = list(read_vectors(file))
    own, before = Judge(Knowledge(published=False)), Judge(Knowledge(published=False))
    for scenario in scenarios:
        own.run(scenario)
        older = {**scenario["node"], "kubelet": f"v1.{int(version.split('.')[1]) - 1}.0"}
        before.run({**scenario, "node": older})
    score = own.total()
    return Agreement(
        version=version,
        scenarios=len(scenarios),
        verdicts=score.admits,
        verdicts_agreed=score.admits_agreed,
        masks=score.masks,
        masks_agreed=score.masks_agreed,
        memory=score.memory,
        memory_agreed=score.memory_agreed,
        amounts=score.certain,
        amounts_agreed=score.certain_agreed,
        agreed_with_the_version_before=before.total().admits_agreed,
    )


def recordings() -> list[Path]:
    """Return all recordings, oldest version first."""
    return sorted(RECORDED.glob("kubelet-*.jsonl.gz"), key=lambda file: int(file.name.split(".")[1]))


def main() -> int:
    """Judge all recordings and write down what came of it."""
    found = [agreement_of(file) for file in recordings()]
    AGREEMENT.write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
