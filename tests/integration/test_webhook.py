"""The admission webhook as a process, called by a simulated API server over HTTPS with certificates of its own."""

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cel_expr_python import cel
from kai_cli.upkeep.webhook_certificates import (
    certificates,
    configuration,
    make_certificate,
    sharing_configuration,
)
from kai_webhook.main import WebhookSettings, serve
from kaicore.errors import ApiStatus, ConfigurationError
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.events import payloads
from kaicore.rules.model.node import KAI_TOPOLOGY, TopologyDefinition, TopologyLevel
from kaicore.runtime.service import Health, ServiceContext, get_logger
from kaicore.runtime.service.http_server import listening_socket
from kaicore.runtime.service.log_access import LOG
from kaicore.runtime.service.settings import read_settings
from kaicore.yaml_text import load_yaml, load_yaml_all

from tests.given.processes.tasks import going
from tests.given.processes.waiting import eventually
from tests.given.servers.kube import DEFINITIONS, PODS, Api, simulated
from tests.integration.scheduling import Facts

CRDS = Path(__file__).parents[2] / "deploy/k8s/crds"
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
MUTATING = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
HYPER_NODES = "/apis/topology.volcano.sh/v1alpha1/hypernodes"
PATIENCE_S = 60

Json = dict[str, Any]


@dataclass
class Webhook:
    """A webhook in this process, and the files of its certificate."""

    url: str
    directory: Path
    context: ServiceContext

    def write_certificate(self) -> bytes:
        """Write a certificate anew; return who signed it."""
        files = make_certificate(["localhost"], days=1)
        for name, content in files.items():
            (self.directory / name).write_bytes(content)
        return files["ca.crt"]


@asynccontextmanager
async def answering(directory: Path, **more: Any) -> AsyncIterator[Webhook]:
    """Run a webhook with further settings."""
    listening = listening_socket("127.0.0.1", 0, None)
    context = ServiceContext("webhook", Health(LOG), get_logger())
    made = Webhook(f"https://localhost:{listening.getsockname()[1]}", directory, context)
    made.write_certificate()
    files = {"tls_cert_file": directory / "tls.crt", "tls_key_file": directory / "tls.key"}
    settings = WebhookSettings.model_validate({**files, "http_fd": listening.detach(), **more})
    async with going(serve(context, settings), until=context.stopping):
        yield made


@pytest.fixture
async def webhook(tmp_path: Path) -> AsyncIterator[Webhook]:
    async with answering(tmp_path) as made:
        yield made


async def register(api: Api, webhook: Webhook, *, policy: str = "Fail") -> None:
    """Have the API server ask the webhook, as the manifest says, but at its address here."""
    document = configuration(namespace="n", service="s", authorities=(webhook.directory / "ca.crt").read_bytes())
    (entry,) = document["webhooks"]
    entry["clientConfig"] = {
        "url": f"{webhook.url}/validate",
        "caBundle": base64.b64encode((webhook.directory / "ca.crt").read_bytes()).decode(),
    }
    entry["failurePolicy"] = policy
    await api.client.post(CONFIGURATIONS, document)


def hyper_node(name: str, **selector: Any) -> Json:
    spec = {"tier": 1, "members": [{"type": "Node", "selector": selector}]}
    return {
        "apiVersion": "topology.volcano.sh/v1alpha1",
        "kind": "HyperNode",
        "metadata": {"name": name},
        "spec": spec,
    }


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    async with simulated() as server:
        for name in ("topologies/topology.volcano.sh", "podgroups/scheduling.run.ai"):
            await server.client.post(DEFINITIONS, load_yaml((CRDS / f"{name}.yaml").read_text()))
        yield server


async def test_a_hyper_node_with_two_selectors_is_refused_by_the_api_server_with_our_words(
    api: Api, webhook: Webhook
) -> None:
    await register(api, webhook)
    two = hyper_node("two", exactMatch={"name": "n1"}, regexMatch={"pattern": "n"})
    with pytest.raises(ApiStatus) as refused:
        await api.client.post(HYPER_NODES, two)
    assert refused.value.code == 403
    assert (
        'admission webhook "topology.kai.scheduler" denied the request: HyperNode two: spec.members[0].selector: '
        "must have exactly one of exactMatch, regexMatch, labelMatch" in str(refused.value)
    )
    await api.client.post(HYPER_NODES, hyper_node("one", exactMatch={"name": "n1"}))
    assert [item["metadata"]["name"] for item in await api.items(HYPER_NODES)] == ["one"]
    with pytest.raises(ApiStatus, match="is no regular expression"):
        await api.merge(f"{HYPER_NODES}/one", {"spec": hyper_node("x", regexMatch={"pattern": "("})["spec"]})
    # Its status, its end, and objects of other kinds are nobody's business.
    await api.merge(f"{HYPER_NODES}/one/status", {"status": {"nodeCount": 1}})
    await api.client.delete(f"{HYPER_NODES}/one")
    await api.node("n1")


async def test_what_was_wrong_before_the_webhook_came_can_be_changed_elsewhere(api: Api, webhook: Webhook) -> None:
    await api.client.post(HYPER_NODES, hyper_node("old", regexMatch={"pattern": "("}))
    await register(api, webhook)
    await api.merge(f"{HYPER_NODES}/old", {"metadata": {"labels": {"a": "b"}}})


async def test_a_renewed_certificate_is_taken_without_a_restart(api: Api, webhook: Webhook) -> None:
    await register(api, webhook)
    await api.client.post(HYPER_NODES, hyper_node("before", exactMatch={"name": "n1"}))
    authority = base64.b64encode(webhook.write_certificate()).decode()
    (entry,) = (await api.get(f"{CONFIGURATIONS}/s"))["webhooks"]
    entry["clientConfig"]["caBundle"] = authority
    await api.merge(f"{CONFIGURATIONS}/s", {"webhooks": [entry]})

    async def made() -> bool:
        try:
            await api.client.post(HYPER_NODES, hyper_node("after", exactMatch={"name": "n1"}))
        except Exception as error:
            assert "failed calling webhook" in str(error)  # noqa: PT017
            return False
        return True

    await eventually(made)


async def test_a_webhook_that_does_not_answer_stands_in_nobodys_way(api: Api, webhook: Webhook) -> None:
    await register(api, webhook, policy="Ignore")
    webhook.write_certificate()
    (entry,) = (await api.get(f"{CONFIGURATIONS}/s"))["webhooks"]
    entry["clientConfig"]["url"] = "https://localhost:1/validate"
    await api.merge(f"{CONFIGURATIONS}/s", {"webhooks": [entry]})
    await api.client.post(HYPER_NODES, hyper_node("two", exactMatch={"name": "n"}, regexMatch={"pattern": "n"}))


async def test_health_and_what_is_no_question_are_answered(webhook: Webhook) -> None:
    connector = aiohttp.TCPConnector(ssl=False)
    async with aiohttp.ClientSession(connector=connector) as session:
        async with session.get(f"{webhook.url}/readyz") as answer:
            assert answer.status == 200
        async with session.post(f"{webhook.url}/validate", data=b"{}") as answer:
            assert answer.status == 400
            assert "AdmissionReview" in (await answer.json())["error"]


async def test_levels_are_looked_up_in_the_log_and_told_as_warnings(
    api: Api, tmp_path: Path, database_url: str, cluster_name: str
) -> None:
    async with await PostgresLog.open(database_url) as log:
        levels = (TopologyLevel("rack", ("rack",)),)
        definition = TopologyDefinition(KAI_TOPOLOGY, "default", "uid", "1", levels)
        await Facts(log, cluster_name).append(("topology/x", payloads.TopologyDefinitionObserved(definition)))
    group = {
        "apiVersion": "scheduling.run.ai/v2alpha2",
        "kind": "PodGroup",
        "metadata": {"name": "g", "namespace": "d"},
        "spec": {"minMember": 1, "topologyConstraint": {"topology": "default", "requiredTopologyLevel": "rak"}},
    }
    kind = {"group": "scheduling.run.ai", "version": "v2alpha2", "kind": "PodGroup"}
    request = {"uid": "u", "kind": kind, "operation": "CREATE", "object": group}
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    async with (
        answering(tmp_path, cluster=cluster_name, database_url=database_url) as made,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False)) as session,
    ):

        async def warned() -> list[str]:
            async with session.post(f"{made.url}/validate", json=review) as answer:
                response = (await answer.json())["response"]
            assert response["allowed"]
            return list(response.get("warnings", []))

        warnings = await eventually(warned)
    assert "level rak is not in Topology default: it has rack" in warnings[0]


def test_certificates_are_written_as_manifests_and_the_authority_before_stays_trusted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    certificates()
    first = capsys.readouterr().out
    (tmp_path / "secret.yaml").write_text(first)
    certificates(previous=tmp_path / "secret.yaml")
    secret, registered = load_yaml_all(capsys.readouterr().out)
    before, _ = load_yaml_all(first)
    assert sorted(secret["data"]) == ["ca.crt", "tls.crt", "tls.key"]
    bundle = base64.b64decode(registered["webhooks"][0]["clientConfig"]["caBundle"])
    assert bundle == base64.b64decode(secret["data"]["ca.crt"]) + base64.b64decode(before["data"]["ca.crt"])
    assert secret["data"]["ca.crt"] != before["data"]["ca.crt"]
    (tmp_path / "other.yaml").write_text("{apiVersion: v1, kind: Secret, metadata: {name: x}, data: {ca.crt: AAAA}}")
    with pytest.raises(ConfigurationError, match="no Secret with an authority"):
        certificates(previous=tmp_path / "other.yaml")


def test_a_cluster_without_a_log_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="--cluster and --database-url go together"):
        read_settings(WebhookSettings, ["--tls-cert-file", "a", "--tls-key-file", "b", "--cluster", "c"])


async def test_pod_with_a_share_is_completed_or_refused_as_it_is_made(api: Api, tmp_path: Path) -> None:
    async with answering(tmp_path, gpu_sharing=True) as webhook:
        await _pods_with_shares(api, webhook)


async def _pods_with_shares(api: Api, webhook: Webhook) -> None:
    authority = (webhook.directory / "ca.crt").read_bytes()
    document = sharing_configuration(namespace="n", service="s", authorities=authority)
    # A failing webhook keeps no pod back that may be another scheduler's.
    assert [entry["failurePolicy"] for entry in document["webhooks"]] == ["Fail", "Ignore"]
    for entry in document["webhooks"]:
        assert entry["clientConfig"]["service"]["path"] == "/mutate"
        entry["clientConfig"] = {"url": f"{webhook.url}/mutate", "caBundle": base64.b64encode(authority).decode()}
    await api.client.post(MUTATING, document)

    def pod(name: str, fraction: str) -> Json:
        spec = {"schedulerName": "kai-ledger", "containers": [{"name": "main", "image": "x"}]}
        return {"metadata": {"name": name, "annotations": {"gpu-fraction": fraction}}, "spec": spec}

    made = await api.post(PODS, pod("half", "0.5"))
    prefix = made["metadata"]["annotations"]["runai/shared-gpu-configmap"]
    assert made["spec"]["volumes"] == [
        {"name": f"{prefix}-0-vol", "configMap": {"name": f"{prefix}-0", "defaultMode": 420}}
    ]
    with pytest.raises(ApiStatus, match=r"gpu-fraction\]: is no number between 0 and 1: '2'"):
        await api.post(PODS, pod("double", "2"))
    whole = await api.pod("whole")
    assert "volumes" not in whole["spec"]
    asking = {"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000}}}
    hami = {"metadata": {"name": "hami"}, "spec": {"schedulerName": "kai-ledger", "containers": [asking]}}
    made = await api.post(PODS, hami)
    assert made["metadata"]["annotations"]["gpu-memory"] == "3000"
    assert made["spec"]["containers"][0]["resources"] == {}
    assert len(made["spec"]["volumes"]) == 1


@pytest.mark.parametrize(
    ("containers", "asked"),
    [
        ({"containers": [{"name": "a", "resources": {"limits": {"nvidia.com/gpumem": "3000"}}}]}, True),
        (
            {"containers": [{"name": "a"}, {"name": "b", "resources": {"limits": {"volcano.sh/vgpu-number": "1"}}}]},
            True,
        ),
        (
            {"containers": [{"name": "a"}], "initContainers": [{"resources": {"limits": {"koordinator.sh/gpu": 5}}}]},
            True,
        ),
        ({"containers": [{"name": "a", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}, False),
        ({"containers": [{"name": "a", "resources": {}}]}, False),
    ],
)
def test_webhook_is_asked_about_pods_with_virtual_gpus_only(containers: Json, asked: bool) -> None:
    _, virtual = sharing_configuration(namespace="n", service="s", authorities=b"")["webhooks"]
    (condition,) = virtual["matchConditions"]
    environment = cel.NewEnv(variables={"object": cel.Type.DYN})
    value = environment.compile(condition["expression"]).eval(data={"object": {"spec": containers}})
    assert value.value() is asked


def test_certificates_have_pods_completed_only_where_shares_are_enabled(capsys: pytest.CaptureFixture[str]) -> None:
    certificates(gpu_sharing=True)
    kinds = [one["kind"] for one in load_yaml_all(capsys.readouterr().out)]
    assert kinds == ["Secret", "ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"]
    certificates()
    assert [one["kind"] for one in load_yaml_all(capsys.readouterr().out)] == kinds[:2]
