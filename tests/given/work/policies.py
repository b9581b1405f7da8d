"""Policies in tests: entered in a book as a file would be, and cycles with them that are replayed."""

from collections.abc import Sequence

import numpy as np
from kaicore.policy import Facts, Ints, Nodes, Policy, Work
from kaicore.rules.deciding.decide import Proposal, decide
from kaicore.rules.deciding.replay import ReplayReport
from kaicore.rules.engine.config import Backfill, EngineConfig, PolicySetting
from kaicore.rules.engine.decisions import CycleResult
from kaicore.rules.engine.policies.book import PolicyBook, PolicyGuard

from tests.given.logs.replaying import replayed
from tests.given.work.workloads import Workloads


class SpotLast(Policy):
    name = "spot-last"
    node_labels = ("spot",)

    def score(self, nodes: Nodes, work: Work, facts: Facts) -> Ints:
        return np.where(nodes.labels("spot") == "true", 0, 500)


def setting_of(kind: type[Policy], *, queues: Sequence[str] = (), digest: str = "") -> PolicySetting:
    """The setting of a policy with default arguments; the digest of its source is made up."""
    return PolicySetting(
        name=kind.name,
        version="1",
        digest=digest or f"of-{kind.__qualname__}",
        arguments=kind.Arguments().model_dump(),
        queues=tuple(queues),
        points=tuple(sorted(kind.points())),
        pod_labels=kind.pod_labels,
        pod_annotations=kind.pod_annotations,
        tenants=kind.tenants,
    )


class WithPolicies(Workloads):
    """A cluster with a shard that has policies.

    Attributes:
        config: the shard's settings.
        book: of the policies' code.
        proposals: of the cycles so far.
    """

    def __init__(self, *kinds: type[Policy], queues: Sequence[str] = (), guard: PolicyGuard | None = None) -> None:
        super().__init__()
        self.book = PolicyBook(guard)
        settings = tuple(setting_of(kind, queues=queues) for kind in kinds)
        for kind, setting in zip(kinds, settings, strict=True):
            self.book.add(kind, setting.digest)
        self.config = EngineConfig(policies=settings, backfill=Backfill.OFF)
        self.proposals: list[Proposal] = []

    def decided(self) -> Proposal:
        """Run a cycle with the policies, and record it."""
        proposal = decide(self.state, self.config, shard="default", now=self.now, actor="scheduler", policies=self.book)
        self.append(proposal.units)
        self.proposals.append(proposal)
        return proposal

    def cycle(self, config: EngineConfig | None = None) -> CycleResult:
        """Run a cycle with the policies, whatever the settings."""
        return self.decided().result

    def nodes_of(self) -> dict[str, str]:
        """The nodes of the pods that a cycle places, by name."""
        return self.placed(self.decided().result)

    def replayed(self, book: PolicyBook | None = None) -> ReplayReport:
        return replayed(self.events, book or self.book)
