"""`kai load`: create many objects at once, faster than kubectl does."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kaicore.errors import ApiStatus, ClusterUnavailable, ConfigurationError, InvalidObject
from kaicore.kube.api.access import configured_access
from kaicore.kube.api.client import KubeClient
from kaicore.kube.api.discovery import ObjectPaths
from kaicore.spelling import did_you_mean

from kai_cli.output import Progress
from kai_cli.running.up import first_error, print_line
from kai_cli.sources.manifests import Manifest, read_manifests
from kai_cli.sources.paths import data_directory
from kai_cli.sources.source import current_cluster

#: Requests under way at once.
_AT_ONCE = 32
#: How often an object is tried when the server does not answer, and the pause before the next try in seconds.
_TRIES, _PAUSE_S = 6, 0.5
#: Kinds that others need: created first, one after another.
_FIRST = (
    *("Namespace", "CustomResourceDefinition", "PriorityClass"),
    *("Topology", "ClusterNetworkTopology", "HyperNode"),
)

_ALREADY_EXISTS = 409


@dataclass(slots=True)
class Loaded:
    """The results of the objects, by kind."""

    created: Counter[str] = field(default_factory=Counter)
    present: Counter[str] = field(default_factory=Counter)
    refused: list[str] = field(default_factory=list)

    @property
    def tried(self) -> int:
        """The number of objects."""
        return self.created.total() + self.present.total() + len(self.refused)


class Loader:
    """Creates objects on one API server, which it asks once per group for its resources."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._paths = ObjectPaths(client)

    async def create(
        self, manifests: list[Manifest], *, on_progress: Callable[[int, int], None] = lambda _, __: None
    ) -> Loaded:
        """Create objects; those that are there already stay as they are.

        Raises ClusterUnavailable: the server does not answer, repeatedly.

        Args:
            on_progress: is called with how many were tried, and how many there are.
        """
        loaded = Loaded()
        for manifest in manifests:
            try:
                await self._paths.learn(manifest)
            except InvalidObject as error:
                raise ConfigurationError(str(error)) from error
            except ApiStatus as error:
                raise ConfigurationError(f"the API server does not say what it serves: {error}") from error
        for manifest in manifests:
            if manifest["kind"] in _FIRST:
                await self._create(manifest, loaded)
        limit = asyncio.Semaphore(_AT_ONCE)

        async def one(manifest: Manifest) -> None:
            async with limit:
                await self._create(manifest, loaded)
            on_progress(loaded.tried, len(manifests))

        async with asyncio.TaskGroup() as tasks:
            for manifest in manifests:
                if manifest["kind"] not in _FIRST:
                    tasks.create_task(one(manifest))
        return loaded

    async def _create(self, manifest: Manifest, loaded: Loaded) -> None:
        kind, metadata = manifest["kind"], manifest["metadata"]
        name = f"{kind} {metadata.get('name') or metadata.get('generateName')}"
        try:
            path = await self._paths.collection(manifest)
        except InvalidObject:
            loaded.refused.append(f"{name}: the API server knows no {kind} in {manifest['apiVersion']}")
            return
        for attempt in range(1, _TRIES + 1):
            try:
                await self._client.post(path, manifest)
                loaded.created[kind] += 1
                return
            except ApiStatus as error:
                if error.code == _ALREADY_EXISTS and error.reason == "AlreadyExists":
                    loaded.present[kind] += 1
                else:
                    loaded.refused.append(f"{name}: {error}")
                return
            except ClusterUnavailable:
                if attempt == _TRIES:
                    raise
                await asyncio.sleep(_PAUSE_S * attempt)


async def load(
    *files: Path, data_dir: Path | None = None, cluster: str | None = None, kubeconfig: Path | None = None
) -> int:
    """Create the objects of manifests (YAML, JSON, folders) on a cluster; what is there already stays as it is.

    Args:
        files: manifests or folders of them.
        data_dir: of the `kai up` that runs the cluster.
        cluster: which of its clusters; by default the current one (`kai cluster use`).
        kubeconfig: another API server instead.
    """
    if not files:
        raise ConfigurationError("load what? Name files or folders")
    config = service_kubeconfig(data_dir, cluster, kubeconfig)
    manifests = read_manifests(list(files))
    try:
        async with KubeClient(configured_access(str(config))) as client:
            with Progress("creating objects") as progress:
                loaded = await Loader(client).create(manifests, on_progress=progress)
    except ExceptionGroup as errors:
        raise first_error(errors) from errors
    for kind in sorted({*loaded.created, *loaded.present}):
        more = f", {loaded.present[kind]} there already" if loaded.present[kind] else ""
        print_line(f"{kind}: {loaded.created[kind]} created{more}")
    for refusal in loaded.refused:
        print_line(f"refused: {refusal}")
    return 1 if loaded.refused else 0


def service_kubeconfig(data_dir: Path | None, cluster: str | None, named: Path | None) -> Path:
    """Return the kubeconfig that is meant: the named one, or that of the named or current cluster of a running stack.

    Raises ConfigurationError: no stack runs, or not that cluster in it.
    """
    if named is not None:
        return named
    directory = data_directory(data_dir)
    running = directory.running()
    if running is None:
        raise ConfigurationError(f"nothing runs in {directory.root}: start `kai up`, or name --kubeconfig")
    there = ", ".join(sorted(running.clusters)) or "none is ready yet"
    if cluster is not None and cluster not in running.clusters:
        better = did_you_mean(cluster, running.clusters)
        raise ConfigurationError(f"--cluster {cluster}: no such cluster runs in {directory.root}: {there}{better}")
    if not running.clusters:
        raise ConfigurationError(f"no cluster of {directory.root} is ready yet")
    chosen = cluster or current_cluster(list(running.clusters), directory)
    return Path(running.clusters[chosen].service_kubeconfig)
