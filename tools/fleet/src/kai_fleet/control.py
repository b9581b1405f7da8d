"""Faults and questions over HTTP, beside `/healthz` and `/metrics`: `/simulator/...`, for administrators.

GET  /simulator/nodes                        nodes, pods on them, whether their kubelet runs
GET  /simulator/nodes/{node}                 what each pod holds
POST /simulator/nodes/{node}/kubelet         {"running": false}
POST /simulator/nodes/{node}/heartbeats      {"silent": true}
POST /simulator/nodes/{node}/pods            {"fail": true}: those that come from then on fail at once
POST /simulator/nodes/{node}/devices         {"resource": "nvidia.com/gpu", "id": "gpu-00", "healthy": false}
POST /simulator/nodes/{node}/lag             {"statusSeconds": 2, "podresourcesSeconds": 0.4, "syncSeconds": 0.1}
POST /simulator/nodes/{node}/publisher       {"lagSeconds": 30, "lose": 2, "wrongFingerprint": true}

They take a bearer token that may do so; what is wrong is said as `{"error": "…"}`.

Access to the fleet's control endpoints: for clients that the API server admits, as with a kubelet's own server.

The API server reviews the caller's bearer token (`TokenReview`) and the rights of its user (`SubjectAccessReview` of
the path, verbs `get` and `post`). This is Kubernetes' delegated authentication and authorization. An administrator may
do all; a role with `nonResourceURLs: ["/simulator/*"]` suffices.
"""

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, Response
from kaicore.errors import ClusterError
from kaicore.kube.api.client import KubeClient
from kaicore.runtime.service.http_errors import add_error_handlers, error_response
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel
from starlette.routing import BaseRoute, Route

from kai_fleet.fleet import Fleet
from kai_fleet.kubelet.kubelet import available, held_by
from kai_fleet.kubelet.machine import members, to_cpulist
from kai_fleet.node.runtime import NodeRuntime


class _User(msgspec.Struct, frozen=True):
    username: str = ""
    uid: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str]] | None = None


class _Status(msgspec.Struct, frozen=True):
    authenticated: bool = False
    allowed: bool = False
    user: _User = _User()


class _Review(msgspec.Struct, frozen=True):
    status: _Status = _Status()


async def _check_access(client: KubeClient, request: Request) -> None:
    """Ask the API server whether a caller may send a request.

    Raises HTTPException: 401 without a token that the server knows, 403 where its user may not, 503 where the server
    does not answer.

    Args:
        client: of the fleet's API server; it needs `create` of tokenreviews and subjectaccessreviews.
    """
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise _unauthorized("header Authorization: no bearer token (the API server's administrator has one)")
    verb, path = request.method.lower(), request.url.path
    try:
        review = await _review(client, "authentication.k8s.io/v1", "TokenReview", {"token": token.strip()})
        if not review.authenticated:
            raise _unauthorized("the API server does not know this token")
        user = review.user
        spec = {
            "user": user.username,
            "uid": user.uid,
            "groups": user.groups or [],
            "extra": user.extra or {},
            "nonResourceAttributes": {"path": path, "verb": verb},
        }
        access = await _review(client, "authorization.k8s.io/v1", "SubjectAccessReview", spec)
    except (ClusterError, msgspec.DecodeError) as error:
        raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, f"the API server reviews no tokens: {error}") from error
    if not access.allowed:
        raise HTTPException(HTTPStatus.FORBIDDEN, f"{user.username} may not {verb} {path}")


def _unauthorized(why: str) -> HTTPException:
    return HTTPException(HTTPStatus.UNAUTHORIZED, why, {"WWW-Authenticate": "Bearer"})


async def _review(client: KubeClient, version: str, kind: str, spec: dict[str, Any]) -> _Status:
    path = f"/apis/{version}/{kind.lower()}s"
    answer = await client.post(path, {"apiVersion": version, "kind": kind, "spec": spec})
    return msgspec.json.decode(answer, type=_Review).status


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel)


class _Kubelet(_Body):
    running: bool


class _Heartbeats(_Body):
    silent: bool


class _Pods(_Body):
    fail: bool


class _Device(_Body):
    resource: str
    id: str
    healthy: bool


class _Lag(_Body):
    status_seconds: float | None = Field(default=None, ge=0, le=60)
    podresources_seconds: float | None = Field(default=None, ge=0, le=60)
    sync_seconds: float | None = Field(default=None, ge=0, le=60)


class _PublisherFaults(_Body):
    lag_seconds: float | None = Field(default=None, ge=0)
    lose: int | None = Field(default=None, ge=0)
    wrong_fingerprint: bool | None = None


_CONTROL = "/simulator/"

_BodyT = TypeVar("_BodyT", bound=_Body)


def control_app(current: Callable[[], Fleet | None]) -> FastAPI:
    """Return the application with the control endpoints.

    Args: current: returns the fleet once it has joined.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    add_error_handlers(app)
    app.router.routes += _control_routes(lambda: _joined(current))

    @app.middleware("http")
    async def guarded(request: Request, call: Callable[[Request], Awaitable[Response]]) -> Response:
        if request.url.path.startswith(_CONTROL):
            try:
                await _check_access(_joined(current).client, request)
            except HTTPException as error:
                return error_response(error.status_code, error.detail, error.headers)
        return await call(request)

    return app


def _joined(current: Callable[[], Fleet | None]) -> Fleet:
    fleet = current()
    if fleet is None:
        raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, "the fleet has not joined yet")
    return fleet


def _control_routes(joined: Callable[[], Fleet]) -> list[BaseRoute]:  # long: one small handler for each route
    async def list_nodes(_: Request) -> Response:
        return JSONResponse([_summary(node) for node in joined().nodes.values()])

    async def show_node(request: Request) -> Response:
        node = _node(joined(), request)
        kubelet = node.agent.kubelet
        pods = {
            f"{pod.namespace}/{pod.name}": {
                "uid": pod.uid,
                "stage": node.agent.pods[pod.uid].stage.value,
                "containers": {
                    held.container.name: {
                        "cpus": to_cpulist(held.cpus),
                        "devices": {r: kubelet.managers.devices.pools[r].ids(d) for r, d in held.devices.items()},
                        "memory": [
                            {"type": b.type, "size": b.size, "zones": list(members(b.zones))} for b in held.blocks
                        ],
                    }
                    for held in held_by(kubelet, pod)
                },
            }
            for pod in kubelet.pods.values()
            if pod.uid in node.agent.pods
        }
        return JSONResponse({**_summary(node), "holding": pods, "available": available(kubelet)})

    def post(name: str, model: type[_BodyT], act: Callable[[NodeRuntime, _BodyT], None]) -> Route:
        async def handler(request: Request) -> Response:
            node, body = _node(joined(), request), await _read(request, model)
            act(node, body)
            return JSONResponse(_summary(node))

        return Route(f"/simulator/nodes/{{node}}/{name}", handler, methods=["POST"])

    def kubelet(node: NodeRuntime, body: _Kubelet) -> None:
        if body.running and node.down:
            joined().start_kubelet(node.spec.name)
        elif not body.running:
            joined().stop_kubelet(node.spec.name)

    def devices(node: NodeRuntime, body: _Device) -> None:
        try:
            joined().set_device_health(node.spec.name, body.resource, body.id, healthy=body.healthy)
        except KeyError as error:
            raise HTTPException(HTTPStatus.NOT_FOUND, f"no such device: {error}") from error

    return [
        Route("/simulator/nodes", list_nodes),
        Route("/simulator/nodes/{node}", show_node),
        post("kubelet", _Kubelet, kubelet),
        post("heartbeats", _Heartbeats, _heartbeats),
        post("pods", _Pods, _pods),
        post("devices", _Device, devices),
        post("lag", _Lag, _lag),
        post("publisher", _PublisherFaults, _publisher),
    ]


def _heartbeats(node: NodeRuntime, body: _Heartbeats) -> None:
    node.silent = body.silent


def _pods(node: NodeRuntime, body: _Pods) -> None:
    node.agent.fails_pods = body.fail


def _lag(node: NodeRuntime, body: _Lag) -> None:
    lag = node.agent.lag
    lag.status_s = lag.status_s if body.status_seconds is None else body.status_seconds
    lag.sync_s = lag.sync_s if body.sync_seconds is None else body.sync_seconds
    if body.podresources_seconds is not None:
        lag.podresources_s = body.podresources_seconds


def _publisher(node: NodeRuntime, body: _PublisherFaults) -> None:
    faults = node.publisher.faults
    faults.lag_s = faults.lag_s if body.lag_seconds is None else body.lag_seconds
    faults.lose = faults.lose if body.lose is None else body.lose
    if body.wrong_fingerprint is not None:
        faults.wrong_fingerprint = body.wrong_fingerprint
        node.publisher.changed()


def _summary(node: NodeRuntime) -> dict[str, Any]:
    faults, lag = node.publisher.faults, node.agent.lag
    return {
        "name": node.spec.name,
        "registered": node.registered,
        "kubelet": "down" if node.down else "running",
        "silent": node.silent,
        "activePods": len(node.agent.kubelet.pods),
        "lag": {"statusSeconds": lag.status_s, "podresourcesSeconds": lag.podresources_s, "syncSeconds": lag.sync_s},
        "publisher": {"lagSeconds": faults.lag_s, "lose": faults.lose, "wrongFingerprint": faults.wrong_fingerprint},
    }


def _node(fleet: Fleet, request: Request) -> NodeRuntime:
    name = request.path_params["node"]
    if name not in fleet.nodes:
        raise HTTPException(HTTPStatus.NOT_FOUND, f"no such node: {name}")
    return fleet.nodes[name]


async def _read(request: Request, model: type[_BodyT]) -> _BodyT:
    try:
        return model.model_validate_json(await request.body())
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, item['loc'])) or 'body'}: {item['msg']}" for item in error.errors(include_url=False)
        )
        raise HTTPException(HTTPStatus.BAD_REQUEST, problems) from error
