"""The pods that use each claim: persistent volume claims, or resource claims."""

from collections.abc import Collection, Iterable


class ClaimUsers:
    """The pods that use each claim."""

    def __init__(self) -> None:
        self._uids: dict[str, set[str]] = {}

    def add(self, uid: str, claims: Iterable[str]) -> None:
        """Know that a pod uses claims, by `namespace/name`; harmless when it is known."""
        for key in claims:
            self._uids.setdefault(key, set()).add(uid)

    def remove(self, uid: str, claims: Iterable[str]) -> None:
        """Forget that a pod uses claims; harmless when it is not known."""
        for key in claims:
            uids = self._uids.get(key, set())
            uids.discard(uid)
            if not uids:
                self._uids.pop(key, None)

    def of(self, claim: str) -> Collection[str]:
        """Return the uids of the pods that use a claim."""
        return self._uids.get(claim, ())

    def is_shared(self, claim: str) -> bool:
        """Tell whether several pods use a claim."""
        return len(self.of(claim)) > 1
