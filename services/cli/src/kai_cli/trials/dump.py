"""`kai dump`: all objects of a cluster that matter to scheduling, as one file that `kai simulate` reads."""

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml
from cyclopts import Parameter
from kaicore.analysis.trial.simulation import is_read
from kaicore.errors import ApiStatus, ConfigurationError
from kaicore.kube.api.access import configured_access
from kaicore.kube.api.client import KubeClient

from kai_cli.output import warn
from kai_cli.running.load import service_kubeconfig

Object = dict[str, Any]

#: Objects per page of a list.
_PAGE = 500

_FORBIDDEN, _NOT_FOUND, _GONE = 403, 404, 410


class Dump:
    """Lists what `kai simulate` reads, whatever of it an API server serves."""

    def __init__(self, client: KubeClient) -> None:
        """Args: client: of the API server; needs the right to list."""
        self._client = client
        #: What could not be listed, one line each.
        self.warnings: list[str] = []

    async def objects(self) -> list[Object]:
        """Return the objects, in order of API group, kind, namespace and name, without `metadata.managedFields`.

        Raises:
            ApiStatus: the server refuses to say what it serves.
            ClusterUnavailable: it does not answer.
        """
        listed: list[Object] = []
        for api_version, resource in await self._resources():
            listed += await self._list(api_version, resource["kind"], resource["name"])
        return listed

    async def _resources(self) -> list[tuple[str, Object]]:
        """Return what is served and read, each kind in one version: the preferred one that is read."""
        groups = msgspec.json.decode(await self._client.get("/apis")).get("groups") or ()
        of_groups = [("", ["v1"])]
        for group in groups:
            versions = [group["preferredVersion"], *group["versions"]]
            of_groups.append((group["name"], [one["groupVersion"] for one in versions]))
        chosen: dict[tuple[str, str], tuple[str, Object]] = {}
        for name, versions in of_groups:
            for version in dict.fromkeys(versions):
                for resource in await self._served(version):
                    whole = "/" not in resource["name"] and "list" in resource.get("verbs", ())
                    if whole and is_read(version, resource["kind"]):
                        chosen.setdefault((name, resource["kind"]), (version, resource))
        return [chosen[key] for key in sorted(chosen)]

    async def _served(self, api_version: str) -> list[Object]:
        body = await self._client.find(_path(api_version))
        served: list[Object] = [] if body is None else msgspec.json.decode(body).get("resources") or []
        return served

    async def _list(self, api_version: str, kind: str, plural: str) -> list[Object]:
        path = f"{_path(api_version)}/{plural}"
        listed: list[Object] = []
        token = ""
        while True:
            try:
                page = msgspec.json.decode(await self._client.list_page(path, limit=_PAGE, continue_token=token))
            except ApiStatus as error:
                if error.code == _GONE and token:
                    # The list took longer than the server keeps it: once more from the beginning.
                    listed, token = [], ""
                    continue
                if error.code not in (_FORBIDDEN, _NOT_FOUND):
                    raise
                self.warnings.append(f"no {plural} ({api_version}): {error}")
                return []
            for item in page.get("items") or ():
                item.get("metadata", {}).pop("managedFields", None)
                listed.append({"apiVersion": api_version, "kind": kind, **item})
            token = page.get("metadata", {}).get("continue", "")
            if not token:
                return sorted(listed, key=_name)


def _path(api_version: str) -> str:
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"


def _name(item: Object) -> tuple[str, str]:
    metadata = item.get("metadata", {})
    return metadata.get("namespace", ""), metadata.get("name", "")


async def dump(
    *,
    data_dir: Path | None = None,
    cluster: str | None = None,
    kubeconfig: Path | None = None,
    output: Annotated[Literal["json", "yaml"], Parameter(name=["--output", "-o"])] = "json",
) -> None:
    """Write the objects of a cluster that matter to scheduling to standard output, for `kai simulate -`.

    Args:
        data_dir: of the `kai up` that runs the cluster.
        cluster: which of its clusters; by default the current one (`kai cluster use`).
        kubeconfig: another API server instead.
        output: json or yaml.
    """
    async with KubeClient(configured_access(str(service_kubeconfig(data_dir, cluster, kubeconfig)))) as client:
        one = Dump(client)
        items = await one.objects()
    warn(one.warnings)
    if not items:
        raise ConfigurationError("nothing could be listed that matters to scheduling")
    document = {"apiVersion": "v1", "kind": "List", "metadata": {}, "items": items}
    if output == "json":
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(document), indent=1).decode() + "\n")
    else:
        yaml.safe_dump(document, sys.stdout, sort_keys=False)
