"""Admission webhooks: whoever is registered is asked before an object is written (`admission.k8s.io/v1`).

Validating ones are asked about every write; mutating ones only about new objects, each once, in order.

Services have no addresses here: of `clientConfig` only `url` is called, and a webhook behind a `service` counts as one
that does not answer. `matchConditions` (CEL) are not evaluated.
"""

import ssl
from base64 import b64decode
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from kai_apiserver.errors import StatusError, internal_error
from kai_apiserver.objects import Object, decode_json, encode_json, new_uid
from kai_apiserver.rest.backend import Backend, Operation, Target
from kai_apiserver.rest.patching import apply_json_patch
from kai_apiserver.rest.selectors import selector_of

CONFIGURATIONS = "validatingwebhookconfigurations.admissionregistration.k8s.io"
MUTATING_CONFIGURATIONS = "mutatingwebhookconfigurations.admissionregistration.k8s.io"
_NAMESPACES = "namespaces"

#: Seconds that a webhook has where it does not say (Kubernetes 1.36).
_TIMEOUT_S = 10


class AdmissionWebhooks:
    """Asks the webhooks of a cluster."""

    def __init__(self, backend: Backend, post: Callable[[Object, Object], Awaitable[Object]] | None = None) -> None:
        """Args:
        post: sends a webhook a review and returns its response, by default over HTTPS; raises an OSError where there
            is none.
        """
        self._backend = backend
        self._send = post or _post

    def matching(
        self, target: Target, verb: str, *, labels: dict[str, str] | None = None, configurations: str = CONFIGURATIONS
    ) -> list[Object]:
        """Return the webhooks that are to be asked, in order of configuration.

        Args:
            verb: CREATE, UPDATE or DELETE.
            labels: of the object; None where they are not known yet, and all may match.
        """
        return [
            webhook
            for configuration in self._backend.all_of(configurations)
            for webhook in configuration.decode().get("webhooks") or ()
            if any(_applies(rule, target, verb) for rule in webhook.get("rules") or ())
            and self._selects(webhook, target, labels)
        ]

    async def review(
        self, target: Target, verb: str, *, new: Object | None, old: Object | None, operation: Operation
    ) -> None:
        """Ask all who are to be asked; what they warn of is added to the operation's warnings.

        Raises StatusError: one of them denies it, or does not answer and must.
        """
        shown = new or old or {}
        labels = shown.get("metadata", {}).get("labels") or {}
        for webhook in self.matching(target, verb, labels=labels):
            response = await self._ask(webhook, _review(target, verb, new=new, old=old, operation=operation))
            if response is None:
                continue
            operation.warnings += response.get("warnings") or ()
            if not response.get("allowed"):
                raise _denial(webhook, response.get("status") or {})

    async def completed(self, target: Target, given: Any, *, operation: Operation) -> Any:
        """Return a new object as mutating webhooks leave it; what is no object comes back as it is.

        Raises StatusError: one of them denies it, does not answer and must, or patches what is not there.
        """
        metadata = given.get("metadata") if isinstance(given, dict) else None
        if not isinstance(metadata, dict):
            return given
        labels = metadata.get("labels") or {}
        for webhook in self.matching(target, "CREATE", labels=labels, configurations=MUTATING_CONFIGURATIONS):
            response = await self._ask(webhook, _review(target, "CREATE", new=given, old=None, operation=operation))
            if response is None:
                continue
            if not response.get("allowed"):
                raise _denial(webhook, response.get("status") or {})
            if response.get("patch"):
                given = apply_json_patch(given, decode_json(b64decode(response["patch"])))
        return given

    async def _ask(self, webhook: Object, review: Object) -> Object | None:
        """Return a webhook's response; None where it does not answer and need not."""
        try:
            return await self._send(webhook, review)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            if webhook.get("failurePolicy", "Fail") == "Ignore":
                return None
            raise internal_error(f'failed calling webhook "{webhook["name"]}": {error}') from error

    def _selects(self, webhook: Object, target: Target, labels: dict[str, str] | None) -> bool:
        of_object, of_namespace = (selector_of(webhook.get(name)) for name in ("objectSelector", "namespaceSelector"))
        if of_object is not None and labels is not None and not of_object.matches(labels):
            return False
        if of_namespace is None or not target.resource.namespaced:
            return True
        namespace = self._backend.find(_NAMESPACES, target.namespace) or {}
        return of_namespace.matches(namespace.get("metadata", {}).get("labels") or {})


async def _post(webhook: Object, review: Object) -> Object:
    """Raises ValueError where the answer is none."""
    client = webhook.get("clientConfig") or {}
    if not client.get("url"):
        raise ValueError("services have no addresses in this simulation: set clientConfig.url")
    context = ssl.create_default_context(
        cadata=b64decode(client["caBundle"]).decode() if client.get("caBundle") else None
    )
    timeout = aiohttp.ClientTimeout(total=webhook.get("timeoutSeconds") or _TIMEOUT_S)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.post(
            client["url"], data=encode_json(review), headers={"Content-Type": "application/json"}, ssl=context
        ) as answer,
    ):
        body = await answer.read()
        if answer.status != 200:
            raise ValueError(f"{answer.status}: {body[:200].decode(errors='replace')}")
    answered = decode_json(body)
    response = answered.get("response") if isinstance(answered, dict) else None
    if not isinstance(response, dict) or response.get("uid") != review["request"]["uid"]:
        raise ValueError("the answer is no AdmissionReview of this request")
    return response


def _review(target: Target, verb: str, *, new: Object | None, old: Object | None, operation: Operation) -> Object:
    resource = target.resource
    metadata = (new or old or {}).get("metadata", {})
    request: Object = {
        "uid": new_uid(),
        "kind": {"group": resource.group, "version": resource.version, "kind": resource.kind},
        "resource": {"group": resource.group, "version": resource.version, "resource": resource.plural},
        "name": target.name or metadata.get("name", ""),
        "operation": verb,
        "userInfo": {"username": operation.user.name, "groups": list(operation.user.groups)},
        "object": new,
        "oldObject": old,
        "dryRun": operation.dry_run,
    }
    if target.subresource:
        request["subResource"] = target.subresource
    if resource.namespaced:
        request["namespace"] = target.namespace
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def _denial(webhook: Object, status: dict[str, Any]) -> StatusError:
    text = f'admission webhook "{webhook["name"]}" denied the request'
    why = status.get("message") or status.get("reason")
    code = status.get("code") or 403
    reason = status.get("reason") or ("Forbidden" if code == 403 else "Unknown")
    return StatusError(code, reason, f"{text}: {why}" if why else f"{text} without explanation")


def _applies(rule: Object, target: Target, verb: str) -> bool:
    resource = target.resource
    path = f"{resource.plural}/{target.subresource}" if target.subresource else resource.plural
    return (
        _has(rule.get("operations"), verb)
        and _has(rule.get("apiGroups"), resource.group)
        and _has(rule.get("apiVersions"), resource.version)
        and any(_names(pattern, path) for pattern in rule.get("resources") or ())
        and rule.get("scope", "*") in ("*", "Namespaced" if resource.namespaced else "Cluster")
    )


def _has(values: list[str] | None, value: str) -> bool:
    return any(one in ("*", value) for one in values or ())


def _names(pattern: str, path: str) -> bool:
    """Tell whether a pattern names a resource: `pods`, `pods/status`, `*`, `*/status`, `pods/*` or `*/*`."""
    plural, _, subresource = path.partition("/")
    wanted, slash, part = pattern.partition("/")
    if wanted not in ("*", plural):
        return False
    return not subresource if not slash else part in ("*", subresource)
