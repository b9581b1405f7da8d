"""The living demonstration: work of three teams that keeps coming and going, so that there is always something to see.

What comes, in which order and for how long it runs is a function of a seed and a number; the clock only says when. The
teams take turns: for a while one of them brings most of the work and borrows what the others leave, then another comes
back and reclaims it. Manifests are those of the folder `teams`.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from copy import deepcopy
from datetime import UTC, datetime
from functools import partial
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import count
from typing import Any, NamedTuple

import msgspec
from kaicore.errors import ApiStatus, ClusterUnavailable, KaiError
from kaicore.kube.api.client import KubeClient
from kaicore.kube.api.object_paths import ObjectPaths
from kaicore.yaml_text import load_yaml, load_yaml_all

from kai_cli.demonstration.report import listed_pods
from kai_cli.running.load import Loader
from kai_cli.sources.manifests import Manifest

#: What the living demonstration has made; other work is left alone.
LIFE_LABEL = "demo.kai.scheduler/life"
#: Age in seconds at which an object that does not end by itself is deleted.
DELETE_AFTER = "demo.kai.scheduler/delete-after"

_QUEUE = "kai.scheduler/queue"
_RUN_SECONDS = "simulator.kai.scheduler/run-seconds"
_NAMESPACE = "default"
#: How much of the work each team brings, by turns of so many arrivals.
_TURNS = (
    {"research": 8, "vision": 0, "speech": 2},
    {"research": 2, "vision": 7, "speech": 1},
    {"research": 3, "vision": 3, "speech": 3},
)
_TURN = 12
#: Seconds between two arrivals, and for how long work runs.
_PAUSES_S, _RUNS_S = (4, 11), (45, 150)
#: Pods that wait for a node at most, before anything else comes.
MOST_WAITING = 30
#: Seconds between two looks at how it stands; of so many looks one is reported.
_LOOK_S, _LOOKS_REPORTED = 5.0, 12
#: Where the number of the next arrival is kept, with the cluster's other objects.
_KEPT_PATH = f"/api/v1/namespaces/{_NAMESPACE}/configmaps"
_KEPT_NAME = "life-of-the-demonstration"
_NOT_FOUND = 404


class Arrival(NamedTuple):
    """Work that comes.

    Attributes:
        pause_s: seconds after the one before.
        manifest: the object, named by its number.
    """

    pause_s: float
    manifest: Manifest


class _KeptMetadata(msgspec.Struct, rename="camel"):
    name: str
    creation_timestamp: str = ""
    annotations: dict[str, str] = {}


class _Kept(msgspec.Struct):
    metadata: _KeptMetadata
    data: dict[str, str] = {}


class _KeptList(msgspec.Struct):
    items: list[_Kept]


def teams() -> Traversable:
    """Return the folder of the teams' manifests: what they share, and in `work` a file for each kind of work."""
    return resources.files("kai_cli.demonstration") / "teams"


def shared_by_teams() -> list[Manifest]:
    """Return the teams' queues, that of work which names none, and the topology that some work names."""
    texts = ((teams() / name).read_text("utf-8") for name in ("queues.yaml", "topology.yaml"))
    return [manifest for text in texts for manifest in load_yaml_all(text)]


def team_work() -> dict[str, list[Manifest]]:
    """Return what each team may bring, by the name of its queue, in order of the files' names."""
    work: dict[str, list[Manifest]] = {}
    files = sorted((teams() / "work").iterdir(), key=lambda file: file.name)
    for manifest in (load_yaml(file.read_text("utf-8")) for file in files):
        work.setdefault(manifest["metadata"]["labels"][_QUEUE], []).append(manifest)
    return work


def arrival(work: dict[str, list[Manifest]], *, seed: int, number: int, pace: float = 1.0) -> Arrival:
    """Return the work of a number: always the same for a seed.

    Args:
        work: what the teams may bring.
        seed: of all that is drawn.
        number: from 0.
        pace: how much faster than usual work comes and goes.
    """
    chance = random.Random(f"{seed}/{number}")
    weights = _TURNS[number // _TURN % len(_TURNS)]
    (team,) = chance.choices(list(weights), weights=list(weights.values()))
    manifest = deepcopy(chance.choice(work[team]))
    pause, seconds = chance.randint(*_PAUSES_S) / pace, chance.randint(*_RUNS_S) / pace
    metadata = manifest["metadata"]
    metadata["name"] = f"{metadata['name']}-{number}"
    metadata["namespace"] = _NAMESPACE
    metadata["labels"][LIFE_LABEL] = "true"
    _run_for(manifest, seconds)
    return Arrival(pause, manifest)


def _run_for(part: Any, seconds: float) -> None:
    """Have all pods of a manifest that end by themselves run for so long."""
    if isinstance(part, list):
        for item in part:
            _run_for(item, seconds)
    elif isinstance(part, dict):
        for name, value in part.items():
            if name == _RUN_SECONDS:
                part[name] = f"{seconds:g}"
            else:
                _run_for(value, seconds)


class Life:
    """Brings work to a cluster, and takes away what does not end by itself."""

    def __init__(self, client: KubeClient, *, seed: int, report: Callable[[str], None], pace: float = 1.0) -> None:
        """Args:
        client: of the cluster.
        seed: of what comes.
        report: gets a line about how it stands now and then.
        pace: how much faster than usual work comes and goes; tests are in a hurry.
        """
        self._client = client
        self._loader = Loader(client)
        self._paths = ObjectPaths(client)
        self._seed = seed
        self._pace = pace
        self._report = report
        self._work = team_work()
        self._number = 0
        self._has_room = asyncio.Event()

    async def run(self, *, seconds: float | None) -> None:
        """Bring work for so many seconds, None for no end, and see to what is there; runs until cancelled.

        A cluster that has been brought work before gets what comes next.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._see_to_it())
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._persist(self._begin)
                    while True:
                        await self._has_room.wait()
                        coming = arrival(self._work, seed=self._seed, number=self._number, pace=self._pace)
                        await asyncio.sleep(coming.pause_s)
                        await self._persist(partial(self._bring, coming.manifest))
            self._report("no more work comes: the time of the living demonstration is over")

    async def _persist(self, attempt: Callable[[], Awaitable[None]]) -> None:
        """Try until the API server answers: it may be started again, or have much to do."""
        while True:
            try:
                return await attempt()
            except* ClusterUnavailable:  # also of several requests at once
                pass
            await asyncio.sleep(_LOOK_S)

    async def has_begun(self) -> bool:
        """True if the cluster got work before, in an earlier run too.

        Raises:
            ClusterUnavailable: the API server does not answer.
        """
        try:
            kept = msgspec.json.decode(await self._client.get(f"{_KEPT_PATH}/{_KEPT_NAME}"), type=_Kept)
        except ApiStatus as error:
            if error.code != _NOT_FOUND:
                raise
            return False
        self._number = int(kept.data["next"])
        return True

    async def _begin(self) -> None:
        await self._loader.create(shared_by_teams())
        if not await self.has_begun():
            await self._client.post(_KEPT_PATH, {"metadata": {"name": _KEPT_NAME}, "data": {"next": "0"}})

    async def _bring(self, manifest: Manifest) -> None:
        loaded = await self._loader.create([manifest])
        for refusal in loaded.refused:
            self._report(f"refused: {refusal}")
        self._number += 1
        await self._client.patch(f"{_KEPT_PATH}/{_KEPT_NAME}", {"data": {"next": str(self._number)}})

    async def _see_to_it(self) -> None:
        for look in count():
            with suppress(KaiError):  # the next look comes soon
                pods = await listed_pods(self._client)
                waiting = sum(not pod.node and pod.phase == "Pending" for pod in pods)
                (self._has_room.set if waiting < MOST_WAITING else self._has_room.clear)()
                if look % _LOOKS_REPORTED == _LOOKS_REPORTED - 1:
                    running = sum(pod.phase == "Running" for pod in pods)
                    self._report(f"living: {self._number} came so far; {running} pods run, {waiting} wait")
                for team in self._work.values():
                    for manifest in team:
                        if DELETE_AFTER in manifest["metadata"].get("annotations", {}):
                            await self._take_away(manifest)
            await asyncio.sleep(_LOOK_S / self._pace)

    async def _take_away(self, like: Manifest) -> None:
        """Delete what was made like a manifest and has been there for long enough."""
        path = await self._paths.collection(like)
        found = await self._client.get(path, {"labelSelector": f"{LIFE_LABEL}=true"})
        now = datetime.now(UTC)
        for one in msgspec.json.decode(found, type=_KeptList).items:
            age_s = (now - datetime.fromisoformat(one.metadata.creation_timestamp)).total_seconds()
            if age_s * self._pace >= float(one.metadata.annotations.get(DELETE_AFTER, "inf")):
                with suppress(ApiStatus):  # it may be gone already
                    await self._client.delete(f"{path}/{one.metadata.name}")
