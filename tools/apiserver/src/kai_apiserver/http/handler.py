"""Every request: who asks, whether they may, what faults strike it, and who answers it."""

import asyncio
import dataclasses
import re
from collections.abc import MutableMapping
from typing import Any

from kaicore.runtime.service import get_logger

from kai_apiserver.auth.rbac import Attributes, Authorizer, RightsUse, refusal
from kai_apiserver.auth.tokens import ADMIN, Tokens
from kai_apiserver.errors import (
    StatusError,
    bad_request,
    internal_error,
    path_not_found,
)
from kai_apiserver.http.faults import Faults, Subject, answer_of
from kai_apiserver.http.request import (
    Answer,
    Receive,
    Request,
    RequestPath,
    Send,
    error_answer,
    json_answer,
    object_answer,
    read_request_path,
    send_answer,
    text_answer,
)
from kai_apiserver.http.resource_verbs import ResourceVerbs, read_body
from kai_apiserver.objects import encode_json
from kai_apiserver.resources import discovery
from kai_apiserver.resources.discovery import V2_PROTOBUF, V2_PROTOBUF_ASKED, OpenApi, document_v2, document_v2_protobuf
from kai_apiserver.rest.backend import Backend, Operation, Target, User
from kai_apiserver.rest.patching import APPLY_PATCH
from kai_apiserver.rest.watch_stream import Watches

_CONTROL = "/simulator/"
_OPENAPI_V3 = "/openapi/v3"
_HEALTH = re.compile(r"/(healthz|livez|readyz)(/.*)?$")
_NO_SUBJECT = Subject()  # it is not looked at where no rule is in force and nothing stays open
_AGGREGATED_ASKED = ("as=APIGroupDiscoveryList", "v=v2")
_MANAGER = re.compile(r"[^/]+")
_VALIDATIONS = ("Ignore", "Warn", "Strict")

#: What `/version` says: these are the answers of this version.
VERSION = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.0-kai-simulator",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "python",
    "platform": "linux/amd64",
}


class Handler:
    """Answers every request of every listener: an ASGI application."""

    def __init__(
        self,
        backend: Backend,
        *,
        tokens: Tokens,
        authorizer: Authorizer,
        rights_use: RightsUse,
        verbs: ResourceVerbs,
        faults: Faults,
        watches: Watches,
        checks: dict[str, str],
    ) -> None:
        """`checks` maps the name of each health check to why it fails; an empty reason is good health."""
        self._backend = backend
        self._tokens = tokens
        self._authorizer = authorizer
        self._rights_use = rights_use
        self._verbs = verbs
        self._faults = faults
        self._watches = watches
        self._checks = checks
        self._openapi = OpenApi(backend.registry)
        self._log = get_logger()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        http = Request(scope, receive, send)
        try:
            await self._handle(http)
        except (ConnectionError, asyncio.CancelledError):
            await http.cut()
        except Exception:
            self._log.exception("answer failed", method=http.method, path=scope["path"])
            await http.cut()

    async def _handle(self, http: Request) -> None:
        operation = Operation()
        try:
            request = read_request_path(http.method, http.target)
            answer = await self._answer(http, request, operation=operation)
        except StatusError as error:
            answer = error_answer(error, warnings=operation.warnings)
        except ConnectionError:
            raise
        except Exception as error:
            self._log.exception("request failed", method=http.method, path=http.target.partition("?")[0])
            answer = error_answer(internal_error(f"{type(error).__name__}: {error}"))
        await send_answer(http, answer)

    async def _answer(self, http: Request, request: RequestPath, *, operation: Operation) -> Answer:
        health = _HEALTH.match(request.path)
        if health is not None:
            return self._health(health[1], request)
        user = self._tokens.authenticate(http.header(b"authorization"))
        if http.header(b"impersonate-user"):
            raise bad_request("nobody is impersonated here: ask with the account's own token")
        self._authorize(user, request)
        if request.verb == "patch" and http.content_type == APPLY_PATCH and not self._is_there(request):
            # What server-side apply would make takes the right to make it, too.
            self._authorize(user, dataclasses.replace(request, verb="create"))
        if (request.plural, request.subresource) == ("resourceclaims", "status") and request.verb in (
            "patch",
            "update",
        ):
            # Who writes allocations needs it from Kubernetes 1.36 on; here also who writes `status.devices` alone.
            self._authorize(user, dataclasses.replace(request, subresource="binding"))
        operation.user = user
        if not request.plural:
            return await self._no_resource(http, request)
        operation.field_manager = request.query.get("fieldManager") or _manager(http)
        operation.dry_run = "dryRun" in request.query
        operation.field_validation = request.query.get("fieldValidation") or "Warn"
        if operation.field_validation not in _VALIDATIONS:
            raise bad_request(f'fieldValidation: Unsupported value: "{operation.field_validation}"')
        if not self._faults.rules and request.verb != "watch":
            return await self._verbs.carry_out(http, request, operation=operation, subject=_NO_SUBJECT)
        subject = _subject(http, request)
        if not self._faults.rules:
            return await self._verbs.carry_out(http, request, operation=operation, subject=subject)
        return await self._with_faults(http, request, operation=operation, subject=subject)

    async def _with_faults(
        self, http: Request, request: RequestPath, *, operation: Operation, subject: Subject
    ) -> Answer:
        struck = self._faults.on_request(subject)
        for fault in struck:
            if fault.kind == "latency":
                await asyncio.sleep(fault.seconds)
            error = answer_of(fault, subject)
            if error is not None:
                raise error
            if fault.kind == "reset":
                raise ConnectionResetError
        kinds = {fault.kind for fault in struck}
        http.lost, http.half = "lost-answer" in kinds, "half-answer" in kinds
        return await self._verbs.carry_out(http, request, operation=operation, subject=subject)

    def _authorize(self, user: User, request: RequestPath) -> None:
        if not request.plural:
            verb = {"head": "get"}.get(request.verb, request.verb)
            if request.path.startswith(_CONTROL):
                permitted = user == ADMIN  # no role gives it: who controls the simulation controls every object
            else:
                permitted = self._authorizer.allows(user, Attributes(verb, path=request.path), counted=True)
            if not permitted:
                raise StatusError(
                    403,
                    "Forbidden",
                    f'forbidden: User "{user.name}" cannot {verb} path "{request.path}"',
                    details={},
                )
            return
        wanted = Attributes(
            request.verb,
            group=request.group,
            resource=request.plural,
            subresource=request.subresource,
            namespace=request.namespace,
            name=request.name,
        )
        if not self._authorizer.allows(user, wanted, counted=True):
            raise refusal(user, wanted)

    def _is_there(self, request: RequestPath) -> bool:
        resource = self._backend.registry.find(request.group, request.version, plural=request.plural)
        target = Target(resource, request.namespace if resource.namespaced else "", request.name)
        return self._backend.collection(resource).get(target.key) is not None

    def _health(self, which: str, request: RequestPath) -> Answer:
        failing = {name: why for name, why in self._checks.items() if why}
        if which == "livez" or (not failing and "verbose" not in request.query):
            return text_answer("ok")
        lines = [f"[-]{name} failed: {failing[name]}" if name in failing else f"[+]{name} ok" for name in self._checks]
        verdict = "failed" if failing else "passed"
        return text_answer("\n".join([*lines, f"{which} check {verdict}", ""]), 500 if failing else 200)

    async def _no_resource(self, http: Request, request: RequestPath) -> Answer:
        path = request.path.rstrip("/")
        if path.startswith(_CONTROL):
            return await self._control(http, path.removeprefix(_CONTROL))
        if request.verb not in ("get", "head"):
            raise path_not_found()
        if path == "/version":
            return object_answer(dict(VERSION))
        if path.startswith("/openapi/"):
            return self._serve_openapi(http, path)
        return self._discover(http, path)

    def _serve_openapi(self, http: Request, path: str) -> Answer:
        if path == "/openapi/v2":
            if V2_PROTOBUF_ASKED in http.header(b"accept"):
                return json_answer(document_v2_protobuf(), content_type=V2_PROTOBUF)
            return object_answer(document_v2())
        if path == _OPENAPI_V3:
            return json_answer(self._openapi.index(), content_type="text/plain; charset=utf-8")
        document = self._openapi.document(path.removeprefix(f"{_OPENAPI_V3}/"))
        if document is None:
            raise path_not_found()
        return json_answer(document)

    def _discover(self, http: Request, path: str) -> Answer:
        registry = self._backend.registry
        aggregated = all(part in http.header(b"accept") for part in _AGGREGATED_ASKED)
        parts = path.split("/")[1:]
        match parts:
            case ["api"] | ["apis"] if aggregated:
                document = (
                    discovery.aggregated_core(registry) if parts == ["api"] else discovery.aggregated_groups(registry)
                )
                return json_answer(encode_json(document), content_type=discovery.AGGREGATED)
            case ["api"]:
                return object_answer(discovery.api_versions(http.header(b"host")))
            case ["api", version]:
                return object_answer(discovery.resource_list(registry, "", version))
            case ["apis"]:
                return object_answer(discovery.group_list(registry))
            case ["apis", group]:
                described = discovery.group(registry, group)
                if described is not None:
                    return object_answer(described)
            case ["apis", group, version]:
                return object_answer(discovery.resource_list(registry, group, version))
            case [""]:
                return object_answer({"paths": ["/api", "/apis", "/healthz", "/openapi/v3", "/version"]})
        raise path_not_found()

    async def _control(self, http: Request, path: str) -> Answer:
        """The simulation's own endpoints: faults, use of rights, and forgetting history."""
        match http.method, path.split("/"):
            case "GET", ["faults"]:
                return object_answer({"rules": self._faults.report()})
            case "POST", ["faults"]:
                rules = self._faults.add(await read_body(http))
                for rule in rules:
                    if rule.fault.when == "now":
                        rule.hits = self._watches.strike_now(rule.fault, rule.match)
                return object_answer(
                    {"rules": [rule.model_dump(by_alias=True, exclude_none=True) for rule in rules]}, 201
                )
            case "DELETE", ["faults"]:
                self._faults.clear()
                return object_answer({"rules": []})
            case "DELETE", ["faults", rule_id] if rule_id.isdecimal():
                self._faults.clear(int(rule_id))
                return object_answer({"rules": self._faults.report()})
            case "GET", ["rights"]:
                return object_answer(self._rights_use.report())
            case "DELETE", ["rights"]:
                self._rights_use.clear()
                return object_answer(self._rights_use.report())
            case "POST", ["compact"]:
                for collection in self._backend.store.collections:
                    collection.compact(self._backend.store.rv)
                return object_answer({"resourceVersion": str(self._backend.store.rv)})
        raise path_not_found()


def _subject(http: Request, request: RequestPath) -> Subject:
    """A request as fault rules see it."""
    return Subject.model_construct(
        verb=request.verb,
        group=request.group,
        resource=request.plural,
        subresource=request.subresource,
        namespace=request.namespace,
        name=request.name,
        user_agent=http.header(b"user-agent"),
    )


def _manager(http: Request) -> str:
    """The owner of fields when the client does not say: the program, from its User-Agent."""
    match = _MANAGER.match(http.header(b"user-agent"))
    return match[0] if match is not None else "unknown"
