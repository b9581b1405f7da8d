"""One method per verb: from a request for a resource to its answer."""

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import yaml
from kaicore.yaml_text import load_yaml

from kai_apiserver.auth.rbac import Reviews
from kai_apiserver.auth.tokens import Tokens
from kai_apiserver.errors import (
    bad_request,
    method_not_allowed,
    path_not_found,
)
from kai_apiserver.http.admission_webhooks import AdmissionWebhooks
from kai_apiserver.http.faults import Subject
from kai_apiserver.http.protobuf import MEDIA_TYPE, decode_protobuf
from kai_apiserver.http.request import Answer, Request, RequestPath, json_answer, object_answer, stream_answer, success
from kai_apiserver.objects import Object, decode_json, is_true
from kai_apiserver.resources.crd import DEFINITIONS
from kai_apiserver.resources.crd_lifecycle import DefinitionLifecycle
from kai_apiserver.rest.backend import Backend, Operation, Target, shown
from kai_apiserver.rest.deletion import DeleteOptions, delete
from kai_apiserver.rest.listing import Page, list_page
from kai_apiserver.rest.patching import Patch, patch
from kai_apiserver.rest.pod_actions import bind, evict
from kai_apiserver.rest.tables import View
from kai_apiserver.rest.watch_stream import Watches
from kai_apiserver.rest.writing import commit, create, replace
from kai_apiserver.store import Stored

#: Lists longer than this go out in pieces, so that other requests are served in between.
_PIECE_BYTES = 1 << 20


@dataclass(slots=True)
class Call:
    """One request for a resource.

    Attributes:
        verb: Kubernetes' verb.
        subject: it, as fault rules see it.
        view: how the client wants to be shown objects.
    """

    http: Request
    query: dict[str, str]
    verb: str
    target: Target
    operation: Operation
    subject: Subject
    view: View

    async def body(self, *, optional: bool = False) -> Any:
        """The request's JSON or YAML body."""
        return await read_body(self.http, optional=optional)

    async def body_of(self, kind: str) -> Object:
        """The request's body, which must be of a kind that is not stored."""
        given = await read_body(self.http)
        if not isinstance(given, dict) or given.get("kind", kind) != kind:
            raise bad_request(f"the body is no {kind}")
        given.setdefault("metadata", {})
        return given

    def shows(self, stored: Stored, status: int = 200) -> Answer:
        """The answer that shows one object."""
        return json_answer(self.view.one(stored), status, warnings=self.operation.warnings)

    def says(self, obj: Object, status: int = 200) -> Answer:
        """The answer that is an object of no collection."""
        return object_answer(obj, status, warnings=self.operation.warnings)


class ResourceVerbs:
    """Carries out requests for resources."""

    def __init__(
        self,
        backend: Backend,
        *,
        tokens: Tokens,
        reviews: Reviews,
        watches: Watches,
        definitions: DefinitionLifecycle,
        webhooks: AdmissionWebhooks | None = None,
    ) -> None:
        self._backend = backend
        self._tokens = tokens
        self._reviews = reviews
        self._watches = watches
        self._definitions = definitions
        self._webhooks = webhooks or AdmissionWebhooks(backend)
        self._verbs: dict[str, Callable[[Call], Awaitable[Answer]]] = {
            "get": self._get,
            "list": self._list,
            "watch": self._watch,
            "create": self._create,
            "update": self._update,
            "patch": self._patch,
            "delete": self._delete,
            "deletecollection": self._delete_collection,
        }

    async def carry_out(self, http: Request, request: RequestPath, *, operation: Operation, subject: Subject) -> Answer:
        """Carry out a request. Raises StatusError: it is refused."""
        backend = self._backend
        resource = backend.registry.find(request.group, request.version, plural=request.plural)
        namespace = request.namespace if resource.namespaced else ""
        target = Target(resource, namespace, request.name, request.subresource)
        verbs = resource.subresource(target.subresource).verbs if target.subresource else resource.verbs
        if request.verb not in verbs:
            raise method_not_allowed()
        accept, include = http.header(b"accept"), request.query.get("includeObject", "")
        view = View.read(resource, accept, include=include, now=backend.now)
        call = Call(http, request.query, request.verb, target, operation, subject, view)
        if target.subresource not in ("", "status"):
            return await self._act(call)
        return await self._verbs[request.verb](call)

    async def _get(self, call: Call) -> Answer:
        return call.shows(self._backend.get(call.target))

    async def _list(self, call: Call) -> Answer:
        page = await list_page(self._backend, call.target, query=call.query)
        if sum(len(stored.body) for stored in page.items) < _PIECE_BYTES:
            return json_answer(b"".join(call.view.many(page)), warnings=call.operation.warnings)
        return stream_answer(_in_pieces(call.view, page))

    async def _watch(self, call: Call) -> Answer:
        backend, target, query = self._backend, call.target, call.query
        self._watches.check(backend, target, query=query)
        return stream_answer(self._watches.stream(backend, call.view, target=target, query=query, subject=call.subject))

    async def _create(self, call: Call) -> Answer:
        target, operation = call.target, call.operation
        if target.resource.plural == "bindings" and not target.resource.stored:
            binding = await call.body_of("Binding")
            pods = self._backend.registry.find("", "v1", plural="pods")
            pod = Target(pods, target.namespace, binding["metadata"].get("name", ""))
            bind(self._backend, pod, binding=binding, operation=operation)
            return call.says(success(201), 201)
        given = await call.body()
        if target.resource.stored:
            given = await self._webhooks.completed(target, given, operation=operation)
        await self._reviewed(call, "CREATE", lambda trial: create(self._backend, target, given=given, operation=trial))
        if not target.resource.stored:
            return call.says(self._reviews.review(target, given=given, operation=operation), 201)
        if target.resource.namespaced and not target.namespace:
            raise bad_request("an empty namespace may not be set during creation")
        return call.shows(create(self._backend, target, given=given, operation=operation), 201)

    async def _update(self, call: Call) -> Answer:
        given = await call.body()
        await self._reviewed(
            call, "UPDATE", lambda trial: replace(self._backend, call.target, given=given, operation=trial)[0]
        )
        stored, created = replace(self._backend, call.target, given=given, operation=call.operation)
        return call.shows(stored, 201 if created else 200)

    async def _patch(self, call: Call) -> Answer:
        force = is_true(call.query.get("force"))
        given = Patch(call.http.content_type, await call.http.read(), force)
        await self._reviewed(
            call, "UPDATE", lambda trial: patch(self._backend, call.target, patch=given, operation=trial)[0]
        )
        stored, created = patch(self._backend, call.target, patch=given, operation=call.operation)
        return call.shows(stored, 201 if created else 200)

    async def _delete(self, call: Call) -> Answer:
        options = DeleteOptions.read(await call.body(optional=True), call.query)
        resource, operation = call.target.resource, call.operation
        stored = self._backend.get(call.target)
        await self._reviewed(call, "DELETE", None)
        if resource.storage == DEFINITIONS:
            last, gone = self._definitions.delete(stored, options=options, operation=operation)
        else:
            last, gone = delete(self._backend, stored, resource=resource, options=options, operation=operation)
        if not gone or resource.returned_when_deleted:
            return call.shows(last)
        details: Object = {"name": last.name}
        if resource.group:
            details["group"] = resource.group
        return call.says(success(details=details | {"kind": resource.plural, "uid": last.uid}))

    async def _reviewed(self, call: Call, verb: str, attempt: Callable[[Operation], Stored] | None) -> None:
        """Have admission webhooks judge a write; `attempt` returns what it would leave there.

        Raises StatusError: it is refused.
        """
        target = call.target
        if not target.resource.stored or not self._webhooks.matching(target, verb):
            return
        before = self._backend.collection(target.resource).get(target.key) if target.name else None
        if verb == "UPDATE" and before is None:
            verb = "CREATE"
        trial = dataclasses.replace(call.operation, dry_run=True, warnings=[])
        new = None if attempt is None else shown(attempt(trial), target.resource)
        old = None if before is None else shown(before, target.resource)
        await self._webhooks.review(target, verb, new=new, old=old, operation=call.operation)

    async def _delete_collection(self, call: Call) -> Answer:
        options = DeleteOptions.read(await call.body(optional=True), call.query)
        page = await list_page(self._backend, call.target, query=call.query)
        resource = call.target.resource
        collection = self._backend.collection(resource)
        deleted: list[Stored] = []
        for listed in page.items:
            stored = collection.get(listed.key)
            if stored is not None and stored.uid == listed.uid:
                last, _ = delete(self._backend, stored, resource=resource, options=options, operation=call.operation)
                deleted.append(last)
        body = b"".join(call.view.many(Page(deleted, self._backend.store.rv)))
        return json_answer(body, warnings=call.operation.warnings)

    async def _act(self, call: Call) -> Answer:
        """The subresources other than status."""
        backend, target, operation = self._backend, call.target, call.operation
        match target.resource.storage, target.subresource:
            case "pods", "binding":
                bind(backend, target, binding=await call.body_of("Binding"), operation=operation)
                return call.says(success(201), 201)
            case "pods", "eviction":
                evict(backend, target, eviction=await call.body_of("Eviction"), operation=operation)
                return call.says(success(201), 201)
            case "pods", "log":
                backend.get(target)
                raise bad_request("logs are not available: this is a simulation, in which no container runs")
            case "pods", "ephemeralcontainers" | "resize":
                raise bad_request(f"pods/{target.subresource} is not available: this is a simulation")
            case "serviceaccounts", "token":
                return call.says(self._tokens.issue(target, await call.body_of("TokenRequest")), 201)
            case "namespaces", "finalize":
                return self._finalize(call, await call.body_of("Namespace"))
        raise path_not_found()

    def _finalize(self, call: Call, given: Object) -> Answer:
        stored = self._backend.get(call.target)
        new = stored.decode()
        new["spec"] = {key: value for key, value in (given.get("spec") or {}).items() if value}
        return call.shows(commit(self._backend, call.target, stored=stored, new=new, operation=call.operation))


async def read_body(http: Request, *, optional: bool = False) -> Any:
    """Read a request's JSON or YAML body. Raises StatusError: 400 or 415, it is neither."""
    body = await http.read()
    if not body and optional:
        return None
    content_type = http.content_type
    if content_type == MEDIA_TYPE:
        return decode_protobuf(body)
    try:
        return load_yaml(body) if content_type == "application/yaml" else decode_json(body)
    except (ValueError, yaml.YAMLError) as error:
        raise bad_request(
            "the object provided is unrecognized (must be of type Object): couldn't get version/kind; json "
            f"parse error: {error}"
        ) from error


async def _in_pieces(view: View, page: Page) -> AsyncGenerator[bytes]:
    pending: list[bytes] = []
    size = 0
    for piece in view.many(page):
        pending.append(piece)
        size += len(piece)
        if size >= _PIECE_BYTES:
            yield b"".join(pending)
            pending, size = [], 0
            await asyncio.sleep(0)  # a client that reads fast holds up no other
    yield b"".join(pending)
