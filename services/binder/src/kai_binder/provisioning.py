"""ProvisioningRequests made and deleted, as cycles decide it: tried until there is an outcome.

A request's name is its decision's alone, so that what is there already was made by an answer that was lost, or by
another binder. Templates come before the request and go after it: an autoscaler never sees one without the other.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import msgspec
from kaicore.backoff import backoff, jittered
from kaicore.errors import ApiStatus, ClusterUnavailable
from kaicore.kube.provisioning_objects import PROVISIONING_REQUESTS
from kaicore.rules.events.payloads import (
    ProvisioningRequestCreated,
    ProvisioningRequested,
    ProvisioningRequestRefused,
    ProvisioningRequestRemoved,
    ProvisioningWithdrawn,
)
from kaicore.rules.model.provisioning import NOT_SERVED

from kai_binder.attempt import pod_path
from kai_binder.carrier import Carrier
from kai_binder.projection import Provisioning
from kai_binder.provisioning_documents import (
    GROUP,
    Document,
    owners_of,
    request_document,
    requests_path,
    template_document,
    template_paths,
    templates_path,
)

_UNAUTHORIZED, _NOT_FOUND, _CONFLICT = 401, 404, 409

#: Seconds before the second try, and at most; doubled with each further one.
_FIRST_DELAY_S = 0.2
_LAST_DELAY_S = 10.0

ProvisioningOutcome = ProvisioningRequestCreated | ProvisioningRequestRemoved | ProvisioningRequestRefused


class _ServedVersion(msgspec.Struct):
    version: str = ""


class _ServedGroup(msgspec.Struct):
    versions: list[_ServedVersion] = []


_group_decoder = msgspec.json.Decoder(_ServedGroup)


class ProvisioningWriter(Carrier[Provisioning, ProvisioningOutcome]):
    """Carries decisions about ProvisioningRequests out; one task runs `work`."""

    def _report(self, task: Provisioning, outcome: ProvisioningOutcome | None) -> None:
        """See `Carrier`."""
        match outcome:
            case None:
                result = "dropped"
            case ProvisioningRequestRemoved():
                result = "removed"
            case ProvisioningRequestRefused():
                result = "refused"
                self._log.warning(
                    "provisioning request refused", request=task.subject, code=outcome.code, reason=outcome.reason
                )
            case _:
                result = "created"
        self._metrics.provisioning(result)

    async def _bring_about(self, task: Provisioning) -> ProvisioningOutcome | None:
        """See `Carrier`."""
        clock = asyncio.get_running_loop().time
        begun, attempts, delay_s = clock(), 0, 0.0
        while self._is_open(task):
            if delay_s:
                await asyncio.sleep(jittered(delay_s, self._jitter()))
            attempts += 1
            try:
                return await self._attempt(task, attempts)
            except (ApiStatus, ClusterUnavailable) as error:
                lasting = isinstance(error, ApiStatus) and error.code != _UNAUTHORIZED
                if lasting or clock() - begun >= self._patience_s:
                    await self._clean_up(task)
                    return _refused(task, error, attempts)
                delay_s = backoff(attempts, first=_FIRST_DELAY_S, most=_LAST_DELAY_S)
                if isinstance(error, ClusterUnavailable):
                    delay_s = max(delay_s, min(float(error.retry_after_s or 0), _LAST_DELAY_S))
        return None

    async def _attempt(self, task: Provisioning, attempts: int) -> ProvisioningOutcome:
        """Try once.

        Raises:
            ApiStatus: the API server refuses.
            ClusterUnavailable: it does not answer.
        """
        version, decision = await self._served_version(), task.decision
        if isinstance(decision, ProvisioningWithdrawn):
            paths = template_paths(decision)
            if version:
                paths.insert(0, f"{requests_path(version, decision.namespace)}/{decision.name}")
            await self._delete(paths)
            return ProvisioningRequestRemoved(decision.group, decision.namespace, decision.name, attempts)
        if not version:
            raise ApiStatus(_NOT_FOUND, NOT_SERVED, f"the API server does not serve {GROUP}")
        pods = [await self._pod(decision, pod_set.pod, pod_set.uid) for pod_set in decision.pod_sets]
        owners = owners_of(pods)
        for number, pod in enumerate(pods):
            document = template_document(decision, number, pod, owners)
            await self._create(templates_path(decision.namespace), document)
        try:
            document = request_document(decision, owners, version=version)
            await self._create(requests_path(version, decision.namespace), document)
        except ApiStatus as error:
            # The group has other kinds too, and the namespace is there, for the templates are.
            if error.code == _NOT_FOUND:
                raise ApiStatus(_NOT_FOUND, NOT_SERVED, error.message) from error
            raise
        return ProvisioningRequestCreated(decision.group, decision.namespace, decision.name, attempts)

    async def _served_version(self) -> str:
        """Return the version of ProvisioningRequests to write; empty where their group is not served."""
        try:
            served = _group_decoder.decode(await self._client.get(f"/apis/{GROUP}"))
        except ApiStatus as error:
            if error.code == _NOT_FOUND:
                return ""
            raise
        except msgspec.DecodeError as error:
            raise ClusterUnavailable(f"GET /apis/{GROUP}: {error}") from error
        names = {version.version for version in served.versions}
        return next((version for version in PROVISIONING_REQUESTS.versions if version in names), "")

    async def _pod(self, decision: ProvisioningRequested, name: str, uid: str) -> Document:
        """Return a pod as the API server has it.

        Raises:
            ApiStatus: it is gone, or another one has its name.
        """
        path = pod_path(decision.namespace, name)
        try:
            pod: Document = msgspec.json.decode(await self._client.get(path))
        except msgspec.DecodeError as error:
            raise ClusterUnavailable(f"GET {path}: {error}") from error
        if pod["metadata"]["uid"] != uid:
            raise ApiStatus(_NOT_FOUND, "NotFound", f"pod {name} is another one by now")
        return pod

    async def _create(self, path: str, document: Document) -> None:
        try:
            await self._client.post(path, document)
        except ApiStatus as error:
            if error.code != _CONFLICT:
                raise

    async def _delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            try:
                await self._client.delete(path)
            except ApiStatus as error:
                if error.code != _NOT_FOUND:
                    raise

    async def _clean_up(self, task: Provisioning) -> None:
        """Delete the templates of a request that is not made; what cannot be deleted goes with the pods' owner."""
        if isinstance(task.decision, ProvisioningRequested):
            with suppress(ApiStatus, ClusterUnavailable):
                await self._delete(template_paths(task.decision))


def _refused(task: Provisioning, error: ApiStatus | ClusterUnavailable, attempts: int) -> ProvisioningRequestRefused:
    decision = task.decision
    return ProvisioningRequestRefused(
        group=decision.group,
        namespace=decision.namespace,
        name=decision.name,
        code=error.code,
        reason=error.reason or "Timeout",
        message=error.message if isinstance(error, ApiStatus) else str(error),
        attempts=attempts,
        removing=isinstance(decision, ProvisioningWithdrawn),
    )
