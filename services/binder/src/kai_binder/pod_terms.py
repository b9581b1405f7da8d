"""Dispatches of a cluster's pods, by the mark that the pods carry."""

from collections import Counter
from collections.abc import Mapping

from kaicore.rules.events import payloads
from kaicore.rules.events.payloads import Payload
from kaicore.rules.hub.cluster_side import DISPATCH_MARK, Term

_ENDED = frozenset({"Succeeded", "Failed"})


class PodTerms:
    """The pods of dispatches, by uid; those of others cost nothing."""

    def __init__(self, terms: Mapping[str, str] | None = None) -> None:
        """Args: terms: what `record` gave."""
        self._terms = dict(terms or {})
        self._counts = Counter(self._terms.values())
        self._ended: set[str] = set()

    def fold(self, payload: Payload) -> None:
        """Take in an event."""
        if isinstance(payload, payloads.PodObserved):
            pod = payload.pod
            mark = pod.annotations.get(DISPATCH_MARK, "")
            if mark and pod.uid not in self._terms:
                self._terms[pod.uid] = mark
                self._counts[mark] += 1
            if mark and pod.phase in _ENDED:
                self._ended.add(mark)
        elif isinstance(payload, payloads.PodDeleted) and payload.uid in self._terms:
            mark = self._terms.pop(payload.uid)
            self._counts[mark] -= 1
            self._ended.add(mark)
            if not self._counts[mark]:
                del self._counts[mark]

    def of_pod(self, uid: str) -> str:
        """Return the mark of a pod; empty for one of no dispatch."""
        return self._terms.get(uid, "")

    def count(self, term: Term) -> int:
        """Return how many pods of a term there are."""
        return self._counts[str(term)]

    def ended(self) -> set[str]:
        """Return the marks of which pods have ended or are gone since this was asked last."""
        ended, self._ended = self._ended, set()
        return ended

    def record(self) -> dict[str, str]:
        """Return all of it as plain data."""
        return dict(self._terms)
