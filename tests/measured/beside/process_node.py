"""A node without containers: what its pods run are processes of this machine, by the commands of their manifests.

It shows of a manifest what no simulated kubelet can: that the program starts with these variables, files, Secrets and
accounts, and comes to answer its probes. Each pod has an address of its own in 127.0.0.0/8, so that all may listen on
the same port; what a volume mounts lies in the pod's folder, and paths and names of Services in variables and commands
are changed to what they are here. Images, users, limits and network policies mean nothing here.
"""

import asyncio
import base64
import os
import ssl
import traceback
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import msgspec
import yaml
from kaicore.errors import ApiStatus
from kaicore.kube.api.client import KubeClient
from kaicore.yaml_text import load_yaml

from tests.measured.beside.service_names import ServiceNames

Json = dict[str, Any]

_CAPACITY = {"cpu": "64", "memory": "256Gi", "pods": "110"}
#: Seconds between two looks at the pods, and between two signs of life.
_LOOK_S, _ALIVE_S = 0.3, 10.0
#: Seconds until a container that failed is started again; a kubelet begins with ten.
_AGAIN_S = 1.0
_GRACE_S = 20.0
#: Where the API server has the token of the pod's account mounted; programs of pods get a kubeconfig instead.
_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_STRATEGIC = "application/strategic-merge-patch+json"


class ProcessNode:
    """The node; it also binds whatever waits for the default scheduler.

    Attributes:
        name: of its Node.
    """

    def __init__(
        self, root: Path, client: KubeClient, kubeconfig: Path, *, images: Mapping[str, Mapping[str, str]]
    ) -> None:
        """Args:
        root: for what its pods have.
        client: an administrator's.
        kubeconfig: of the administrator; pods get one like it, with the token of their account.
        images: for each image, the variables with which its programs are found.
        """
        self.name = "processes"
        self._root = root
        self._client = client
        self._kubeconfig = kubeconfig
        self._images = images
        self._pods: dict[str, asyncio.Task[None]] = {}
        self._ending: set[str] = set()
        self._services = ServiceNames(client)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Have the node there; at the end its processes are gone."""
        self._root.mkdir(exist_ok=True)
        await self._join()
        tasks = [asyncio.create_task(self._work()), asyncio.create_task(self._stay_alive())]
        try:
            yield
        finally:
            for task in (*tasks, *self._pods.values()):
                task.cancel()
            await asyncio.gather(*tasks, *self._pods.values(), return_exceptions=True)
            await self._services.close()

    async def _join(self) -> None:
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self.name, "labels": {"kubernetes.io/hostname": self.name}},
        }
        await self._client.post("/api/v1/nodes", node)
        await self._say_ready()

    async def _say_ready(self) -> None:
        conditions = [{"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": _now()}]
        status = {
            "conditions": conditions,
            "capacity": _CAPACITY,
            "allocatable": _CAPACITY,
            "addresses": [{"type": "Hostname", "address": self.name}],
        }
        await self._client.patch(f"/api/v1/nodes/{self.name}/status", {"status": status}, content_type=_STRATEGIC)

    async def _stay_alive(self) -> None:
        while True:
            await asyncio.sleep(_ALIVE_S)
            await self._say_ready()

    async def _work(self) -> None:
        while True:
            pods: list[Json] = (await self._get("/api/v1/pods"))["items"]
            here = {}
            for pod in pods:
                node = pod["spec"].get("nodeName")
                if not node and pod["spec"]["schedulerName"] == "default-scheduler":
                    await self._bind(pod)
                elif node == self.name:
                    here[pod["metadata"]["uid"]] = pod
            for uid in self._pods.keys() - here.keys():
                self._cancel(uid)
            for uid, pod in here.items():
                if "deletionTimestamp" not in pod["metadata"]:
                    if uid not in self._pods:
                        self._pods[uid] = asyncio.create_task(self._run(pod))
                elif self._cancel(uid):
                    with suppress(ApiStatus):
                        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
                        await self._client.delete(_path(pod), options)
            await asyncio.sleep(_LOOK_S)

    def _cancel(self, uid: str) -> bool:
        """Have a pod end, once: a second time would disturb its end. Whether it has ended."""
        task = self._pods.get(uid)
        if task is None or task.done():
            return True
        if uid not in self._ending:
            self._ending.add(uid)
            task.cancel()
        return False

    async def _bind(self, pod: Json) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": self.name}
        metadata = {"name": pod["metadata"]["name"], "namespace": pod["metadata"]["namespace"]}
        with suppress(ApiStatus):
            await self._client.post(f"{_path(pod)}/binding", {"metadata": metadata, "target": target})

    async def _run(self, pod: Json) -> None:
        """Run a pod until it is done or this is cancelled."""
        place = self._root / f"{pod['metadata']['name']}-{pod['metadata']['uid'][:8]}"
        place.mkdir()
        try:
            await self._run_in(place, pod)
        except Exception:
            (place / "node.log").write_text(traceback.format_exc())
            raise

    async def _run_in(self, place: Path, pod: Json) -> None:
        address = self._services.new_address()
        spec = pod["spec"]
        for container in spec.get("initContainers", ()):
            while await self._once(pod, container, place, address):  # noqa: ASYNC110  # each run is awaited
                await asyncio.sleep(_AGAIN_S)
        (container,) = spec["containers"]
        while True:
            code = await self._once(pod, container, place, address)
            if spec["restartPolicy"] == "Never" or (code == 0 and spec["restartPolicy"] == "OnFailure"):
                ended = {"terminated": {"exitCode": code, "reason": "Completed" if code == 0 else "Error"}}
                await self._tell(pod, "Succeeded" if code == 0 else "Failed", address, ready=False, state=ended)
                return
            await self._tell(pod, "Running", address, ready=False, state={"waiting": {"reason": "CrashLoopBackOff"}})
            await asyncio.sleep(_AGAIN_S)

    async def _once(self, pod: Json, container: Json, place: Path, address: str) -> int:
        """Run a container to its end; its exit code."""
        prepared = None
        while prepared is None:
            try:
                prepared = await self._prepare(pod, container, place, address)
            except ApiStatus as error:
                # A Secret or a ConfigMap that is not there yet.
                state = {"waiting": {"reason": "CreateContainerConfigError", "message": str(error)}}
                await self._tell(pod, "Pending", address, ready=False, state=state)
                await asyncio.sleep(_AGAIN_S)
        environment, command = prepared
        with (place / f"{container['name']}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *command, stdout=log, stderr=log, stdin=asyncio.subprocess.DEVNULL, cwd=place, env=environment
            )
        probing = asyncio.create_task(self._probe(pod, container, address))
        try:
            return await process.wait()
        finally:
            probing.cancel()
            await asyncio.gather(probing, return_exceptions=True)
            await _end(process)

    async def _probe(self, pod: Json, container: Json, address: str) -> None:
        """Tell whenever a running container comes to be ready, or not to be."""
        if container in pod["spec"].get("initContainers", ()):
            return
        shown = None
        while True:
            probe = container.get("readinessProbe")
            ready = probe is None or await asyncio.to_thread(_answers, probe["httpGet"], container, address)
            if ready is not shown:
                await self._tell(pod, "Running", address, ready=ready, state={"running": {"startedAt": _now()}})
                shown = ready
            await asyncio.sleep(_LOOK_S)

    async def _tell(self, pod: Json, phase: str, address: str, *, ready: bool, state: Json) -> None:
        said = "True" if ready else "False"
        kinds = {"Initialized": "True", "Ready": said, "ContainersReady": said, "PodScheduled": "True"}
        (container,) = pod["spec"]["containers"]
        status = {
            "phase": phase,
            "podIP": address,
            "podIPs": [{"ip": address}],
            "startTime": pod["metadata"]["creationTimestamp"],
            "conditions": [{"type": k, "status": s, "lastTransitionTime": _now()} for k, s in kinds.items()],
            "containerStatuses": [
                {
                    "name": container["name"],
                    "image": container["image"],
                    "imageID": "",
                    "ready": ready,
                    "restartCount": 0,
                    "state": state,
                }
            ],
        }
        with suppress(ApiStatus):
            await self._client.patch(f"{_path(pod)}/status", {"status": status})

    async def _prepare(self, pod: Json, container: Json, place: Path, address: str) -> tuple[dict[str, str], list[str]]:
        """Make a container's files; return its variables and its command as they are here."""
        changes = {"0.0.0.0": address, **await self._services.names(pod["metadata"]["namespace"])}
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", ())}
        files = place / "files"
        for mount in container.get("volumeMounts", ()):
            if mount["mountPath"] != _ACCOUNT:
                here = files / mount["mountPath"].lstrip("/")
                changes[mount["mountPath"]] = str(here)
                if not here.is_symlink():
                    here.parent.mkdir(parents=True, exist_ok=True)
                    here.symlink_to(await self._volume(pod, volumes[mount["name"]], place))
        above = {str(folder) for path in changes for folder in Path(path).parents if len(folder.parts) > 1}
        environment = {
            **{name: os.environ[name] for name in ("PATH", "LANG", "LD_LIBRARY_PATH") if name in os.environ},
            "KAI_PARENT_PID": str(os.getpid()),
            **self._images[container["image"]],
        }
        if any(mount["mountPath"] == _ACCOUNT for mount in container.get("volumeMounts", ())):
            config = load_yaml(self._kubeconfig.read_text())
            config["users"][0]["user"] = {"token": await self._token(pod, {"expirationSeconds": 7200})}
            kubeconfig = place / "kubeconfig"
            kubeconfig.write_text(yaml.safe_dump(config))
            environment["KAI_KUBECONFIG"] = str(kubeconfig)
        for variable in container.get("env", ()):
            value = await self._value(pod, variable)
            environment[variable["name"]] = f"{files}{value}" if value in above else value
        # Longer ones first: one may begin another.
        for old in sorted(changes, key=len, reverse=True):
            new = changes[old]
            environment = {name: value.replace(old, new) for name, value in environment.items()}
        command = [*container["command"], *container.get("args", ())]
        for old in sorted(changes, key=len, reverse=True):
            command = [part.replace(old, changes[old]) for part in command]
        return environment, command

    async def _value(self, pod: Json, variable: Json) -> str:
        if "value" in variable or "valueFrom" not in variable:
            return str(variable.get("value", ""))
        source = variable["valueFrom"]
        if field := source.get("fieldRef"):
            found: Any = {**pod, "spec": {**pod["spec"], "nodeName": self.name}}
            for part in field["fieldPath"].split("."):
                found = found[part]
            return str(found)
        asked = source["secretKeyRef"]
        return (await self._files(pod, "secrets", asked["name"]))[asked["key"]].decode()

    async def _volume(self, pod: Json, volume: Json, place: Path) -> Path:
        if "hostPath" in volume:
            return Path(str(volume["hostPath"]["path"]))
        folder = place / "volumes" / volume["name"]
        folder.mkdir(parents=True, exist_ok=True)
        for source in volume.get("projected", {}).get("sources", [volume]):
            for path, content in await self._source(pod, source):
                (folder / path).write_bytes(content)
        return folder

    async def _source(self, pod: Json, source: Json) -> Iterator[tuple[str, bytes]]:
        if token := source.get("serviceAccountToken"):
            asked = {"audiences": [token["audience"]], "expirationSeconds": token["expirationSeconds"]}
            return iter([(token["path"], (await self._token(pod, asked)).encode())])
        kind = "secrets" if "secret" in source else "configmaps"
        named = source["secret" if kind == "secrets" else "configMap"]
        files = await self._files(pod, kind, named.get("secretName") or named["name"])
        items = named.get("items") or [{"key": key, "path": key} for key in files]
        return ((item["path"], files[item["key"]]) for item in items)

    async def _files(self, pod: Json, kind: str, name: str) -> dict[str, bytes]:
        found = await self._get(f"/api/v1/namespaces/{pod['metadata']['namespace']}/{kind}/{name}")
        data: dict[str, str] = found.get("data", {})
        return {key: base64.b64decode(text) if kind == "secrets" else text.encode() for key, text in data.items()}

    async def _token(self, pod: Json, asked: Json) -> str:
        bound = {"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {**asked, "boundObjectRef": bound},
        }
        answer = await self._client.post(f"{_account(pod)}/token", body)
        return str(msgspec.json.decode(answer)["status"]["token"])

    async def _get(self, path: str) -> Any:
        return msgspec.json.decode(await self._client.get(path))


def _path(pod: Json) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def _account(pod: Json) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/serviceaccounts/{pod['spec']['serviceAccountName']}"


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _answers(probe: Json, container: Json, address: str) -> bool:
    ports = {port.get("name"): port["containerPort"] for port in container.get("ports", ())}
    url = f"{probe.get('scheme', 'HTTP').lower()}://{address}:{ports.get(probe['port'], probe['port'])}{probe['path']}"
    try:
        # As a kubelet, it does not ask for whom a certificate is.
        with urlopen(url, timeout=2, context=ssl._create_unverified_context()):
            return True
    except (HTTPError, OSError):
        return False


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        await asyncio.wait_for(process.wait(), _GRACE_S)
    except TimeoutError:
        process.kill()
        await process.wait()
