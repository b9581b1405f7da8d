"""Clusters with a past: pods that ran for so long, and what of it a history keeps."""

from collections.abc import Iterable

from kaicore.rules.forecast.runs import RunHistory
from kaicore.rules.model.pod import Owner

from tests.factory import pod
from tests.workloads import Workloads

SECOND = 1_000_000


class PastRuns(Workloads):
    """A cluster whose clock can be put on, and whose events a history takes in."""

    def after(self, seconds: float) -> None:
        """So much time passes."""
        self.now += int(seconds * SECOND)

    def ran(self, name: str, seconds: float, *, phase: str = "Succeeded", **spec: object) -> None:
        """A pod of a Job of its own runs for so long, on a node that is there no more."""
        spec.setdefault("owner", Owner("Job", name, f"uid-job-{name}", "batch/v1"))
        start = self.now // SECOND
        began = self.now
        one = self.add_pod(pod(name, phase="Running", node_name="gone", start_time=start, created_at=start, **spec))
        self.now = began + int(seconds * SECOND) - 1000
        self.see(one, phase=phase)
        self.delete_pod(self.state.pods[one.uid].pod)

    def have_run(self, pattern: str, lengths: Iterable[float], **spec: object) -> None:
        """Pods `<pattern>-<number>` ran for so many seconds, one after the other."""
        for number, seconds in enumerate(lengths):
            self.ran(f"{pattern}-{number}", seconds, **spec)

    def history(self) -> RunHistory:
        """What its events tell of runs."""
        runs = RunHistory()
        for event in self.events:
            runs.take(event)
        return runs
