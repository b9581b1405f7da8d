"""Impersonation (`kubectl --as`, `--as-group`, `--as-uid`), for those who may: apiserver's filters/impersonation."""

from collections.abc import Iterator
from urllib.parse import unquote

from kai_apiserver.auth.rbac import Attributes, Authorizer
from kai_apiserver.auth.tokens import ANONYMOUS
from kai_apiserver.errors import NamedResource, forbidden, internal_error
from kai_apiserver.http.request import Request
from kai_apiserver.rest.backend import User

_ALL, _EXTRA = b"impersonate-", "impersonate-extra-"
_ACCOUNT = "system:serviceaccount:"
_AUTHENTICATION = "authentication.k8s.io"


def acting_user(http: Request, user: User, authorizer: Authorizer) -> User:
    """Return the user that a request is made as: its own, or the one that the headers name.

    Raises:
        StatusError: 403, the user may not impersonate one of those named; 500, groups, a uid or extra fields are named
            without a user, as the real server has it.
    """
    given: dict[str, list[str]] = {}
    for header, value in http.headers_from(_ALL):
        given.setdefault(header, []).append(value)
    if not given:
        return user
    name, uid = (given.get(header, [""])[0] for header in ("impersonate-user", "impersonate-uid"))
    groups = tuple(given.get("impersonate-group", ()))
    extra = {unquote(header.removeprefix(_EXTRA)): given[header] for header in given if header.startswith(_EXTRA)}
    if not (name or uid or groups or extra):
        return user
    if not name:
        raise internal_error("requested groups, a uid or extra fields without impersonating a user")
    for wanted in _wanted(name, uid, groups, extra):
        if not authorizer.allows(user, wanted, counted=True):
            where = f'in the namespace "{wanted.namespace}"' if wanted.namespace else "at the cluster scope"
            resource = f"{wanted.resource}/{wanted.subresource}" if wanted.subresource else wanted.resource
            raise forbidden(
                NamedResource(wanted.resource, wanted.group),
                wanted.name,
                why=f'User "{user.name}" cannot impersonate resource "{resource}" in API group "{wanted.group}" '
                f"{where}",
            )
    return User(name, uid, _all_groups(name, groups), extra)


def _wanted(name: str, uid: str, groups: tuple[str, ...], extra: dict[str, list[str]]) -> Iterator[Attributes]:
    """What the user must be allowed to do, with verb `impersonate`."""
    account = _account(name)
    if account is not None:
        yield Attributes("impersonate", resource="serviceaccounts", namespace=account[0], name=account[1])
    else:
        yield Attributes("impersonate", resource="users", name=name)
    for group in groups:
        yield Attributes("impersonate", resource="groups", name=group)
    if uid:
        yield Attributes("impersonate", group=_AUTHENTICATION, resource="uids", name=uid)
    for key, values in extra.items():
        for value in values:
            yield Attributes("impersonate", group=_AUTHENTICATION, resource="userextras", subresource=key, name=value)


def _account(name: str) -> tuple[str, str] | None:
    """Namespace and name of the service account that a user name stands for."""
    namespace, colon, account = name.removeprefix(_ACCOUNT).partition(":")
    return (namespace, account) if name.startswith(_ACCOUNT) and colon and namespace and account else None


def _all_groups(name: str, groups: tuple[str, ...]) -> tuple[str, ...]:
    """The groups named and those that all of the sort are in."""
    account = _account(name)
    if account is not None and not groups:
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{account[0]}")
    authentication = "system:unauthenticated" if name == ANONYMOUS.name else "system:authenticated"
    return groups if {"system:authenticated", "system:unauthenticated"} & {*groups} else (*groups, authentication)
