"""Resolves the topology names of groups; equal names are resolved once."""

from collections.abc import Sequence

from msgspec.structs import replace

from kaicore.rules.model.group import PodSet
from kaicore.rules.reasons.reason import Reason
from kaicore.rules.topology.book import TopologyBook
from kaicore.rules.topology.resolve import Resolved, resolve

#: So many answers are kept; then all are forgotten.
_MOST = 10_000


class Resolver:
    """Keeps answers for as long as the topologies stay as they are: groups of one template ask for the same.

    Attributes:
        topologies: those that there are.
    """

    def __init__(self, topologies: TopologyBook) -> None:
        self.topologies = topologies
        self._revision = topologies.revision
        self._answers: dict[tuple[tuple[PodSet, ...], tuple[str, ...]], Resolved | Reason | None] = {}

    def __call__(
        self, sets: tuple[PodSet, ...], *, group: str, of_flavors: Sequence[str] = ()
    ) -> Resolved | Reason | None:
        """See `kaicore.rules.topology.resolve.resolve`."""
        if self._revision != self.topologies.revision or len(self._answers) >= _MOST:
            self._answers.clear()
            self._revision = self.topologies.revision
        key = sets, tuple(of_flavors)
        if key in self._answers:
            answer = self._answers[key]
        else:
            answer = self._answers[key] = resolve(sets, self.topologies, group=group, of_flavors=of_flavors)
        return answer if answer is None or isinstance(answer, Resolved) else replace(answer, group=group)
