"""Secrets that services use as proof of themselves or their callers stand nowhere in their output."""

import base64
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from kai_api.long_answers import LongAnswers
from kai_api.main import make_app as api
from kai_cli.upkeep.keys import new
from kai_hub.main import make_app as hub
from kai_ingest.authentication import KubernetesTokens, ReviewedToken
from kai_webhook.app import make_app as webhook
from kaicore.analysis.ask.queries import Inquiry
from kaicore.analysis.trial.dispatching import HubLog
from kaicore.errors import ClusterUnavailable, ConfigurationError
from kaicore.kube.api.access import configured_access
from kaicore.ledger.log.memory import MemoryLog
from kaicore.ledger.nkeys import Nkey
from kaicore.rules.events.payloads import ClusterRegistered
from kaicore.rules.hub.hub_state import HUB, cluster_stream
from kaicore.runtime.access.access_file import AccessFile, read_access_file
from kaicore.runtime.access.callers import HttpAccess
from kaicore.runtime.access.node_tokens import read_secret
from kaicore.runtime.service import Health

from tests.given.processes.ingest_service import running_ingest
from tests.given.servers.http_app import served_app

CANARY = "c4n4ryc4n4ryc4n4ryc4n4ryc4n4ry"


@pytest.mark.parametrize(
    "text",
    [
        f"keys:\n- name: a\n  hash: {CANARY}: b\n",
        f"keys:\n- name: a\n  hash: {CANARY}\n  scopes: ['*']\n",
        f"keys: *{CANARY}\n",
        f"keys: !{CANARY} x\n",
        f'keys: "{CANARY}\n',
        f"keys: [{CANARY}]\n",
        CANARY,
    ],
)
def test_access_file_that_makes_no_sense_is_refused_without_its_keys(text: str, tmp_path: Path) -> None:
    file = tmp_path / "access.yaml"
    file.write_text(text)
    with pytest.raises(ConfigurationError) as refused:
        read_access_file(file)
    assert "access.yaml" in str(refused.value)
    said = [refused.value]
    try:
        # It only adds to what is there.
        new("b", file=file, scope=["*"])
    except ConfigurationError as error:
        said.append(error)
    assert [error for error in said if CANARY in shown(error)] == []


@pytest.mark.parametrize(
    "token",
    [f"{CANARY}: b", f"*{CANARY}", f"!{CANARY} x", f'"{CANARY}', f"[{CANARY}"],
)
async def test_kubeconfig_that_makes_no_sense_is_refused_without_its_token(token: str, tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(
        f"apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{{name: a, context: {{cluster: a, user: a}}}}]\n"
        f"clusters: [{{name: a, cluster: {{server: 'http://127.0.0.1:1'}}}}]\nusers:\n- name: a\n  user:\n"
        f"    token: {token}\n"
    )
    with pytest.raises(ConfigurationError) as refused:
        await configured_access(str(file))()
    assert "kubeconfig" in str(refused.value)
    assert CANARY not in shown(refused.value)


def test_secret_seed_and_key_that_make_no_sense_are_refused_without_them(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text(CANARY[:8])
    with pytest.raises(ConfigurationError) as short:
        read_secret(file)
    with pytest.raises(ConfigurationError) as seed:
        Nkey("SU" + CANARY.upper())
    file.write_text(f"-----BEGIN PRIVATE KEY-----\n{CANARY}\n-----END PRIVATE KEY-----\n")
    with pytest.raises(ssl.SSLError) as key:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(file)
    for error in (short.value, seed.value, key.value):
        assert CANARY[:8].lower() not in shown(error).lower()


def shown(error: BaseException | None) -> str:
    texts = []
    while error is not None:
        texts.append(f"{error} {error!r}")
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return " ".join(texts)


async def review(*_: Any) -> ReviewedToken:
    raise ClusterUnavailable("POST tokenreviews: 503")


async def approach(url: str, key: str, *paths: str) -> list[str]:
    """Show a credential in every way that there is; what is answered."""
    basic = base64.b64encode(f"user:{key}".encode()).decode()
    ways: list[dict[str, Any]] = [
        {"headers": {"Authorization": f"Bearer {key}"}},
        {"headers": {"Authorization": f"Bearer {key}"}, "data": b'{"not json'},
        {"headers": {"Authorization": f"Basic {basic}"}},
        {"headers": {"Authorization": key}},
        {"headers": {"Cookie": f"kai_session={key}; session={key}"}},
    ]
    answers = []
    async with aiohttp.ClientSession() as session:
        for path in paths:
            for method in ("GET", "POST"):
                for way in [*ways, {"data": {"key": key}}] if path == "/login" else ways:
                    async with session.request(method, url + path, allow_redirects=False, **way) as answer:
                        answers.append(f"{answer.status} {dict(answer.headers)} {await answer.text()}")
    return answers


async def test_credentials_of_callers_stand_in_no_answer_log_or_event_of_any_server(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, cluster_name: str
) -> None:
    caplog.set_level("DEBUG")
    log, file = MemoryLog(clock=lambda: 0), tmp_path / "access.yaml"
    new("good", file=file, scope=["*"])
    good = capfd.readouterr().out.strip()
    access = HttpAccess(anonymous="no", file=AccessFile(file))
    await HubLog(log).append(cluster_stream("west"), ClusterRegistered(cluster="west"), subject="west")
    work = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "b"}, "spec": {"containers": []}}
    answers = []
    apps = {
        "api": (api(Inquiry(log), Health(), LongAnswers("", at_once=1, most_s=10), access), ("/v1/clusters", "/login")),
        "hub": (hub(HubLog(log), access, Health()), ("/v1/work", "/v1/dispatches/x")),
        "webhook": (webhook(lambda: None, Health(), scheduler_name="kai-ledger"), ("/validate", "/mutate")),
    }
    for app, paths in apps.values():
        async with served_app(app) as url:
            for key in (CANARY, good):
                answers += await approach(url, key, *paths)
            async with aiohttp.ClientSession() as session:
                for path in paths:
                    headers = {"Authorization": f"Bearer {good}"}
                    async with session.post(url + path, json={"objects": [work]}, headers=headers) as answer:
                        answers.append(await answer.text())
    reviewed = KubernetesTokens(review, audience="", service_accounts=frozenset(), clock=lambda: 0.0)
    for authenticator in (None, reviewed):
        async with running_ingest(log, cluster_name, authenticator=authenticator) as ingest:
            path = f"/v1/clusters/{cluster_name}/nodes/n1/placements"
            answers += await approach(ingest.url, CANARY, path)
            answers += [str(line) for line in ingest.logs]
            answers.append((await ingest.get("/metrics"))[1])
    events = [bytes(event.body) for name in (HUB, cluster_name) for event in await log.read(name)]
    said = capfd.readouterr()
    places = {"answers": answers, "events": events, "output": said, "records": caplog.text}
    secrets = {CANARY, good, base64.b64encode(f"user:{CANARY}".encode()).decode()}
    assert [name for name, text in places.items() for secret in secrets if secret in str(text)] == []
    assert len(answers) > 60
    assert any("401" in answer for answer in answers)
