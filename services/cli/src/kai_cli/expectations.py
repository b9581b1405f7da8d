"""Expected outcomes of a workload: Jobs and pods that run in full, and those that show that they cannot run."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.state.cluster_state import ClusterState

from kai_cli.manifests import Manifest

#: On a Job or pod that no node can ever take: the demonstration then wants it to wait, with reasons.
NEVER_FITS = "demo.kai.scheduler/never-fits"


@dataclass(frozen=True, slots=True)
class ExpectedGroup:
    """A Job, or a pod of its own, and what became of it.

    Attributes:
        name: as in `Job default/train`.
        wanted: how many of its pods must run; 0 for one that cannot.
        ran: how many ran to their end; of a pod of its own also while it runs.
    """

    name: str
    wanted: int
    ran: int

    @property
    def as_expected(self) -> bool:
        """Whether all of it ran; of one that cannot, nothing."""
        return self.ran == 0 if self.wanted == 0 else self.ran >= self.wanted


def groups_of(
    manifests: Iterable[Manifest], state: ClusterState, *, succeeded: Mapping[tuple[str, str], int]
) -> list[ExpectedGroup]:
    """Hold what became of a workload against what was asked for.

    Args:
        manifests: what was applied; Jobs and pods of our scheduler count.
        state: at the end.
        succeeded: how many pods of each Job have ended well, as the Jobs themselves tell, by namespace and name. A pod
            that was evicted when it had ended already is gone from the state, and counts.
    """
    ours = EngineConfig().scheduler_name
    phases = {(entry.pod.namespace, entry.pod.name): entry.pod.phase for entry in state.pods.values()}
    groups = []
    for manifest in manifests:
        kind, metadata, spec = manifest["kind"], manifest["metadata"], manifest.get("spec") or {}
        key = metadata.get("namespace") or "default", metadata.get("name", "")
        if kind == "Job":
            scheduler = ((spec.get("template") or {}).get("spec") or {}).get("schedulerName")
            wanted, ran = spec.get("completions") or spec.get("parallelism") or 1, succeeded.get(key, 0)
        elif kind == "Pod":
            scheduler, wanted, ran = spec.get("schedulerName"), 1, int(phases.get(key) in ("Running", "Succeeded"))
        else:
            continue
        if scheduler != ours:
            continue
        if (metadata.get("annotations") or {}).get(NEVER_FITS) == "true":
            wanted = 0
        groups.append(ExpectedGroup(f"{kind} {'/'.join(key)}", wanted, ran))
    return groups
