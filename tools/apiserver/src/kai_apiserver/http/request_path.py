"""Read what a request is about from its method and path."""

from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote

from kai_apiserver.errors import method_not_allowed
from kai_apiserver.objects import is_true

#: Largest request body, in bytes: the real server's limit.
MAX_BODY_BYTES = 3 * 1024 * 1024

_COLLECTION_VERBS = {"GET": "list", "POST": "create", "DELETE": "deletecollection"}
_OBJECT_VERBS = {"GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "POST": "create"}
_NAMESPACE_SUBRESOURCES = ("status", "finalize")


@dataclass(slots=True)
class RequestPath:
    """What a request is about.

    Attributes:
        verb: Kubernetes' verb for a resource, the lower-case method for any other path.
        path: the decoded path.
        query: the query's parameters; of repeated ones the first.
        group: API group; empty for core.
        version: API version; empty if the path is no resource's.
        plural: the resource; empty if the path is none.
        namespace: namespace, or empty.
        name: object name, or empty.
        subresource: subresource, or empty.
    """

    verb: str
    path: str
    query: dict[str, str]
    group: str = ""
    version: str = ""
    plural: str = ""
    namespace: str = ""
    name: str = ""
    subresource: str = ""


def read_request_path(method: str, raw_path: str) -> RequestPath:
    """Read a method and an undecoded path with query.

    Raises:
        StatusError: 405, the method does not go with the path.
    """
    raw, _, raw_query = raw_path.partition("?")
    query: dict[str, str] = {}
    if raw_query:
        for key, value in parse_qsl(raw_query, keep_blank_values=True):
            query.setdefault(key, value)
    parts = [unquote(part) if "%" in part else part for part in raw.split("/")[1:] if part]
    request = RequestPath(method.lower(), unquote(raw), query)
    if not parts:
        return request
    if parts[0] == "api" and len(parts) >= 3:
        request.version, rest = parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) >= 4:
        request.group, request.version, rest = parts[1], parts[2], parts[3:]
    else:
        return request
    _read_resource(request, rest)
    verbs = _OBJECT_VERBS if request.name else _COLLECTION_VERBS
    verb = verbs.get(method)
    if verb is None:
        raise method_not_allowed()
    if verb == "list" and is_true(query.get("watch")):
        verb = "watch"
    request.verb = verb
    return request


def _read_resource(request: RequestPath, rest: list[str]) -> None:
    if rest[0] == "namespaces" and len(rest) > 2 and not (len(rest) == 3 and rest[2] in _NAMESPACE_SUBRESOURCES):
        request.namespace, rest = rest[1], rest[2:]
    elif rest[0] == "namespaces" and len(rest) > 1 and not request.group:
        request.namespace = rest[1]  # a namespace is in itself
    request.plural = rest[0]
    if len(rest) > 1:
        request.name = rest[1]
    if len(rest) > 2:
        request.subresource = "/".join(rest[2:])
