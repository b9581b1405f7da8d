"""`kubectl` takes the server for Kubernetes."""

import asyncio
import json
import os
import shlex
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from kai_apiserver.server import ApiServer, ApiServerOptions

from tests.given.examples import BEYOND_THE_GATE
from tests.tools.apiserver.client import NODES, PODS, Client, binding, node, pod
from tests.tools.apiserver.conftest import ServerFactory
from tests.tools.apiserver.test_custom_resources import definition, rack
from tests.tools.apiserver.test_deployments import kubelet, running

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed here"),
]


class Refused(Exception):
    """`kubectl` failed; the message is what it said."""


class Kubectl:
    """Runs `kubectl` against one server, with a home of its own."""

    def __init__(self, server: ApiServer, home: Path) -> None:
        self.server = server
        self.client = Client(server.http_url, server.admin_token)
        server.write_kubeconfig(home / "kubeconfig")
        self._environment = {**os.environ, "HOME": str(home), "KUBECONFIG": str(home / "kubeconfig")}

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            "kubectl", *arguments, stdin=pipe, stdout=pipe, stderr=pipe, env=self._environment
        )

    async def __call__(self, *arguments: str, given: Any = None) -> str:
        """Run it; `given` goes to its standard input as JSON."""
        process = await self.start(*arguments)
        output, complained = await process.communicate(json.dumps(given).encode() if given is not None else None)
        if process.returncode:
            raise Refused(complained.decode())
        return output.decode() + complained.decode()

    async def json(self, *arguments: str, given: Any = None) -> Any:
        process = await self.start(*arguments, "-o", "json")
        output, complained = await process.communicate(json.dumps(given).encode() if given is not None else None)
        assert process.returncode == 0, complained.decode()
        return json.loads(output)


@pytest.fixture
async def kubectl(start_server: ServerFactory, tmp_path: Path) -> AsyncIterator[Kubectl]:
    server = await start_server(https=True, job_backoff_s=0.01)
    runner = Kubectl(server, tmp_path)
    async with runner.client:
        yield runner


def labelled(name: str, **labels: str) -> dict[str, Any]:
    made = pod(name)
    made["metadata"]["labels"] = labels
    return made


async def test_apply_creates_leaves_alone_and_changes(kubectl: Kubectl) -> None:
    config: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "c"},
        "data": {"a": "1", "b": "2"},
    }
    template = {"metadata": {"labels": {"a": "b"}}, "spec": pod()["spec"]}
    selector = {"matchLabels": {"a": "b"}}
    deployment: dict[str, Any] = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d"},
        "spec": {"selector": selector, "template": template},
    }
    both = {"apiVersion": "v1", "kind": "List", "items": [config, deployment]}
    assert "configmap/c created" in await kubectl("apply", "-f", "-", given=both)
    assert "deployment.apps/d unchanged" in await kubectl("apply", "-f", "-", given=both)
    del config["data"]["b"]
    template["spec"]["containers"].append({"name": "sidecar", "image": "side:1"})
    changed = await kubectl("apply", "-f", "-", given=both)
    assert "configmap/c configured" in changed
    assert "deployment.apps/d configured" in changed
    assert (await kubectl.json("get", "configmap", "c"))["data"] == {"a": "1"}
    containers = (await kubectl.json("get", "deployment", "d"))["spec"]["template"]["spec"]["containers"]
    assert [item["name"] for item in containers] == ["c", "sidecar"]
    deleted = await kubectl("delete", "-f", "-", given=both)
    assert 'deployment.apps "d" deleted' in deleted


async def test_the_manifests_of_the_services_apply_as_their_readme_says(kubectl: Kubectl) -> None:
    directory = Path(__file__).parents[3] / "deploy" / "k8s"
    block = (directory / "README.md").read_text().split("```")[1]
    for line in block.strip().splitlines():
        program, *arguments = shlex.split(line)
        assert program == "kubectl"
        # Nothing runs here that could be waited for.
        if not {"wait", "rollout"} & set(arguments):
            for _ in range(2):
                output = await kubectl(*(str(directory) if part == "." else part for part in arguments))
            assert "unchanged" in output, "applied again, it changes nothing"
            changed = [line for line in output.splitlines() if line.endswith(" configured")]
            # kubectl sends the selector of a budget each time.
            assert all(line.startswith("poddisruptionbudget.policy/") for line in changed)
    deployments = await kubectl.json("-n", "kai-system", "get", "deployments")
    assert len(deployments["items"]) == 7
    policies = await kubectl.json("-n", "kai-system", "get", "networkpolicies")
    assert len(policies["items"]) == 14


async def test_kubectl_trusts_the_server_by_the_name_that_it_advertises(tmp_path: Path) -> None:
    for name in ("127.0.0.1", "api.example", "localhost"):
        # The certificate of another name is made anew.
        options = ApiServerOptions(
            http_host="0.0.0.0", advertise_host=name, https=True, data_dir=tmp_path / "data", controllers=False
        )
        async with ApiServer(options) as server:
            kubectl = Kubectl(server, tmp_path)
            assert f"https://{name}:" in (tmp_path / "kubeconfig").read_text()
            here = server.https_url.replace(name, "127.0.0.1")
            async with kubectl.client:
                for flags in (("--server", here), ("--server", here, "--tls-server-name", name)):
                    assert "kube-system" in await kubectl("get", "namespaces", *flags)


async def test_apply_is_strict_about_fields(kubectl: Kubectl) -> None:
    with pytest.raises(Refused, match=r'strict decoding error: unknown field "spec\.nonsense"'):
        await kubectl("apply", "-f", "-", given=pod("p", nonsense=1))
    output = await kubectl("apply", "--validate=warn", "-f", "-", given=pod("p", nonsense=1))
    assert 'Warning: unknown field "spec.nonsense"' in output


async def test_server_side_apply_shares_and_quarrels(kubectl: Kubectl) -> None:
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "1"}}
    assert "serverside-applied" in await kubectl("apply", "--server-side", "-f", "-", given=config)
    other = config | {"data": {"a": "2"}}
    with pytest.raises(Refused, match=r'conflict with "kubectl": \.data\.a'):
        await kubectl("apply", "--server-side", "--field-manager=other", "-f", "-", given=other)
    await kubectl("apply", "--server-side", "--field-manager=other", "--force-conflicts", "-f", "-", given=other)
    assert (await kubectl.json("get", "configmap", "c"))["data"] == {"a": "2"}


async def test_get_shows_tables(kubectl: Kubectl) -> None:
    ready = {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {"kubeletVersion": "v1.36.0"}}
    await kubectl.client.post(NODES, node("n1") | {"status": ready})
    await kubectl.client.post(PODS, labelled("a", app="x"))
    await kubectl.client.post(PODS, labelled("b", app="y"))
    await kubectl.client.post(f"{PODS}/a/binding", binding("a", "n1"))
    status = {"phase": "Failed", "reason": "TopologyAffinityError", "message": "m"}
    await kubectl.client.merge(f"{PODS}/a/status", {"status": status})
    wide = (await kubectl("get", "pods", "-o", "wide")).splitlines()
    assert wide[0].split()[:5] == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert wide[1].split()[:3] == ["a", "0/1", "TopologyAffinityError"]
    assert "n1" in wide[1].split()
    assert (await kubectl("get", "pods", "-l", "app=y", "-o", "name")).split() == ["pod/b"]
    assert (await kubectl("get", "pods", "--field-selector", "status.phase=Failed", "-o", "name")).split() == ["pod/a"]
    assert (await kubectl("get", "nodes")).splitlines()[1].split()[:2] == ["n1", "Ready"]
    assert "pod/a" in await kubectl("get", "all", "-A")
    assert "priorityclasses" in await kubectl("api-resources")
    assert "system-node-critical" in await kubectl("get", "pc")


async def test_describe_shows_pods_nodes_and_jobs(kubectl: Kubectl) -> None:
    await kubectl.client.post(NODES, node("n1"))
    uid = (await kubectl.client.post(PODS, pod("p"))).json["metadata"]["uid"]
    await kubectl.client.post(f"{PODS}/p/binding", binding("p", "n1"))
    event = {
        "metadata": {"generateName": "p."},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": "default", "name": "p", "uid": uid},
        "reason": "Scheduled",
        "message": "bound with predicted zones node-0",
        "type": "Normal",
    }
    await kubectl.client.post("/api/v1/namespaces/default/events", event)
    described = await kubectl("describe", "pod", "p")
    assert "QoS Class:" in described
    assert "bound with predicted zones node-0" in described
    assert "Non-terminated Pods:" in await kubectl("describe", "node", "n1")
    await kubectl("create", "job", "j", "--image=x")
    assert "Parallelism:      1" in await kubectl("describe", "job", "j")
    assert "bound with predicted zones" in await kubectl("events", "--for", "pod/p")


async def test_wait_sees_a_job_through(kubectl: Kubectl) -> None:
    async with kubectl.client.watch(PODS) as pods:
        await kubectl("create", "job", "j", "--image=x")
        name = (await pods.until("ADDED"))["object"]["metadata"]["name"]
        waiting = await kubectl.start("wait", "--for=condition=complete", "job/j", "--timeout=60s")
        await kubectl(
            "patch", "pod", name, "--subresource=status", "--type=merge", "-p", '{"status":{"phase":"Succeeded"}}'
        )
        output, _ = await waiting.communicate()
    assert "condition met" in output.decode()
    assert "met" in await kubectl("wait", "--for=jsonpath={.status.succeeded}=1", "job/j", "--timeout=60s")
    assert 'job.batch "j" deleted' in await kubectl("delete", "job", "j")
    assert "No resources found" in await kubectl("get", "pods")


async def test_get_with_watch_prints_changes(kubectl: Kubectl) -> None:
    process = await kubectl.start("get", "pods", "-w", "--no-headers")
    assert process.stdout is not None
    await kubectl.client.post(PODS, pod("a"))
    assert (await process.stdout.readline()).decode().split()[:3] == ["a", "0/1", "Pending"]
    await kubectl.client.merge(f"{PODS}/a/status", {"status": {"phase": "Running"}})
    assert (await process.stdout.readline()).decode().split()[:3] == ["a", "0/1", "Running"]
    process.terminate()
    await process.communicate()


@BEYOND_THE_GATE
async def test_nodes_are_cordoned_tainted_and_drained(kubectl: Kubectl) -> None:
    await kubectl.client.post(NODES, node("n1"))
    await kubectl("cordon", "n1")
    assert (await kubectl.json("get", "node", "n1"))["spec"]["unschedulable"] is True
    await kubectl("uncordon", "n1")
    await kubectl("taint", "node", "n1", "a=b:NoSchedule")
    taints = (await kubectl.json("get", "node", "n1"))["spec"]["taints"]
    assert {"key": "a", "value": "b", "effect": "NoSchedule"} in taints
    await kubectl("taint", "node", "n1", "a-")
    await kubectl.client.post(PODS, pod("p"))
    await kubectl.client.post(f"{PODS}/p/binding", binding("p", "n1"))
    async with kubectl.client.watch(f"{PODS}?fieldSelector=metadata.name%3Dp") as watch:
        draining = await kubectl.start("drain", "n1", "--force", "--timeout=60s")
        while not (await watch.until("MODIFIED"))["object"]["metadata"].get("deletionTimestamp"):
            pass
        await kubectl.client.delete(f"{PODS}/p?gracePeriodSeconds=0")
    output, complained = await draining.communicate()
    assert "node/n1 drained" in output.decode(), complained.decode()


@BEYOND_THE_GATE
async def test_imperative_commands_work_for_every_kind(kubectl: Kubectl) -> None:
    planned = [
        json.loads(await kubectl("create", *arguments, "--dry-run=client", "-o", "json"))
        for arguments in (
            ("namespace", "team"),
            ("configmap", "c", "--from-literal=a=b"),
            ("secret", "generic", "s", "--from-literal=a=b"),
            ("serviceaccount", "sa"),
            ("deployment", "d", "--image=x", "--replicas=3", "--port=80"),
            ("cronjob", "cj", "--image=x", "--schedule=* * * * *"),
            ("priorityclass", "pc", "--value=1000", "--description=d"),
            ("poddisruptionbudget", "pdb", "--selector=a=b", "--max-unavailable=50%"),
            ("role", "r", "--verb=get,list", "--resource=pods,pods/log"),
            ("rolebinding", "rb", "--role=r", "--serviceaccount=default:sa"),
            ("clusterrole", "cr", "--verb=*", "--resource=jobs.batch"),
            ("clusterrolebinding", "crb", "--clusterrole=cr", "--group=g"),
            ("service", "clusterip", "svc", "--tcp=80:8080"),
        )
    ]
    objects = {"apiVersion": "v1", "kind": "List", "items": planned}
    await kubectl("create", "-f", "-", given=objects)
    for stored, one in zip((await kubectl.json("get", "-f", "-", given=objects))["items"], planned, strict=True):
        _contains(stored, one)
    await kubectl("run", "p", "--image=x")
    await kubectl("label", "pod", "p", "a=b")
    await kubectl("annotate", "pod", "p", "k=v")
    await kubectl("patch", "deployment", "d", "-p", '{"spec": {"replicas": 5}}')
    await kubectl("set", "image", "deployment/d", "x=y:2")
    shown = (await kubectl.json("get", "deployment", "d"))["spec"]
    assert (shown["replicas"], shown["template"]["spec"]["containers"][0]["image"]) == (5, "y:2")
    token = (await kubectl("create", "token", "sa")).strip()
    assert "system:serviceaccount:default:sa" in await kubectl("auth", "whoami", "--token", token)
    assert "yes" in await kubectl("auth", "can-i", "list", "pods", "--token", token)
    with pytest.raises(Refused):
        await kubectl("auth", "can-i", "delete", "nodes", "--token", token)
    with pytest.raises(Refused, match="logs are not available"):
        await kubectl("logs", "p")
    await kubectl("delete", "namespace", "team")


def _contains(ours: Any, planned: Any, path: str = "") -> None:
    """Everything that `kubectl` planned to send is in what was stored."""
    if isinstance(planned, dict):
        for key, value in planned.items():
            if value not in (None, {}, []) and not (path == "" and key == "status"):
                assert key in ours, f"{path}.{key}"
                _contains(ours[key], value, f"{path}.{key}")
    elif isinstance(planned, list):
        for index, item in enumerate(planned):
            _contains(ours[index], item, f"{path}[{index}]")
    else:
        assert ours == planned, path


async def test_custom_resources_are_listed_created_and_deleted_like_built_in_kinds(kubectl: Kubectl) -> None:
    columns = [{"name": "Units", "type": "integer", "jsonPath": ".spec.units"}]
    await kubectl("apply", "-f", "-", given=definition(additionalPrinterColumns=columns))
    await kubectl("wait", "--for=condition=Established", "crd/racks.example.com", "--timeout=60s")
    assert "rack.example.com/r created" in await kubectl("apply", "-f", "-", given=rack(units=4))
    assert "rack.example.com/r configured" in await kubectl("apply", "-f", "-", given=rack(units=5))
    assert (await kubectl("get", "rk")).splitlines()[1].split() == ["r", "5"]
    with pytest.raises(Refused, match="should be greater than or equal to 1"):
        await kubectl("apply", "-f", "-", given=rack(units=0))
    await kubectl("delete", "crd", "racks.example.com")
    with pytest.raises(Refused, match="could not find the requested resource"):
        await kubectl("get", "racks")


@BEYOND_THE_GATE
async def test_rollout_status_follows_a_deployment(kubectl: Kubectl) -> None:
    async with kubelet(kubectl.client, running):
        await kubectl("create", "deployment", "web", "--image=a", "--replicas=3")
        assert "successfully rolled out" in await kubectl("rollout", "status", "deployment/web", "--timeout=60s")
        await kubectl("set", "image", "deployment/web", "a=b")
        assert "successfully rolled out" in await kubectl("rollout", "status", "deployment/web", "--timeout=60s")
        assert "REVISION" in (history := await kubectl("rollout", "history", "deployment/web"))
        assert [line.split()[0] for line in history.splitlines()[2:] if line] == ["1", "2"]
        await kubectl("rollout", "undo", "deployment/web")
        assert "successfully rolled out" in await kubectl("rollout", "status", "deployment/web", "--timeout=60s")
        await kubectl("patch", "deployment/web", "-p", '{"spec": {"replicas": 5}}')
        assert "successfully rolled out" in await kubectl("rollout", "status", "deployment/web", "--timeout=60s")
        row = (await kubectl("get", "deployment", "web", "--no-headers")).split()
        assert row[:4] == ["web", "5/5", "5", "5"]
        await kubectl("delete", "deployment", "web")
        await kubectl("wait", "--for=delete", "pods", "-l", "app=web", "--timeout=60s")
