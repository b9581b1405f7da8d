"""Use of rights: the rule that allowed each request, and the refused ones. It shows missing and unneeded rights."""

from collections import Counter

from kai_apiserver.auth.rbac import Attributes
from kai_apiserver.objects import Object
from kai_apiserver.rest.backend import User

_MOST = 100_000


class RightsUse:
    """Counts requests by user, by what they were for, and by the rule that allowed them.

    Only RBAC's rules count: what the administrator does, and what every user may (discovery, asking for their own
    rights), needs none. Objects' names are left out, namespaces are kept.
    """

    def __init__(self) -> None:
        self._allowed: Counter[tuple[str, str, Attributes]] = Counter()
        self._refused: Counter[tuple[str, Attributes]] = Counter()

    def allowed(self, user: User, wanted: Attributes, rule: str) -> None:
        """A request was allowed by a rule."""
        if len(self._allowed) < _MOST:
            self._allowed[user.name, rule, _without_name(wanted)] += 1

    def refused(self, user: User, wanted: Attributes) -> None:
        """A request was refused."""
        if len(self._refused) < _MOST:
            self._refused[user.name, _without_name(wanted)] += 1

    def clear(self) -> None:
        """Count from nothing again."""
        self._allowed.clear()
        self._refused.clear()

    def report(self) -> Object:
        """All of it as JSON: `allowed` and `refused`, each a list of requests that are alike, with how many."""
        return {
            "allowed": [
                {"user": user, "rule": rule, **_shown(wanted), "requests": count}
                for (user, rule, wanted), count in sorted(self._allowed.items(), key=repr)
            ],
            "refused": [
                {"user": user, **_shown(wanted), "requests": count}
                for (user, wanted), count in sorted(self._refused.items(), key=repr)
            ],
        }


def _without_name(wanted: Attributes) -> Attributes:
    if not wanted.name:
        return wanted
    return Attributes(
        wanted.verb,
        group=wanted.group,
        resource=wanted.resource,
        subresource=wanted.subresource,
        namespace=wanted.namespace,
    )


def _shown(wanted: Attributes) -> Object:
    if wanted.path:
        return {"verb": wanted.verb, "path": wanted.path}
    return {
        "verb": wanted.verb,
        "group": wanted.group,
        "resource": f"{wanted.resource}/{wanted.subresource}" if wanted.subresource else wanted.resource,
        "namespace": wanted.namespace,
    }
