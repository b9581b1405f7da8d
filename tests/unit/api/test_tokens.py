"""Tokens of identity providers: what makes them count, and which scopes their claims give."""

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jwt
import pytest
import yaml
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from kaicore.errors import ConfigurationError
from kaicore.runtime.access import oidc
from kaicore.runtime.access.access_file import read_access_file

from tests.given.cluster.factory import pod
from tests.given.logs.recorded_history import log_of
from tests.given.servers.http_app import served_routes
from tests.given.work.workloads import Workloads
from tests.integration.test_api_access import Client, serving


class Provider:
    """An identity provider of this machine, with a key that can be changed."""

    def __init__(self) -> None:
        self.url = ""
        self.asked = 0
        self.away = False
        self.new_key("first")

    def new_key(self, kid: str) -> None:
        self._kid, self._key = kid, ec.generate_private_key(ec.SECP256R1())

    async def answer(self, request: web.Request) -> web.Response:
        if request.path.endswith("openid-configuration"):
            return web.json_response({"issuer": self.url, "jwks_uri": f"{self.url}/keys"})
        self.asked += 1
        if self.away:
            return web.Response(status=503)
        public = jwt.algorithms.ECAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
        return web.json_response({"keys": [public | {"kid": self._kid, "use": "sig", "alg": "ES256"}]})

    def token(self, *, key: Any = None, algorithm: str = "ES256", **claims: Any) -> str:
        usual = {"iss": self.url, "aud": "kai", "sub": "u1", "email": "ann@x", "exp": int(time.time()) + 600}
        return jwt.encode(usual | claims, key or self._key, algorithm, {"kid": self._kid})


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    made = Provider()
    async with served_routes(web.get("/{path:.*}", made.answer)) as made.url:
        yield made


@pytest.fixture
async def asked(provider: Provider, tmp_path: Path) -> AsyncIterator[Client]:
    issuer = {
        "issuer": provider.url,
        "audience": "kai",
        "name_claim": "email",
        "scopes_claim": "kai_scopes",
        "grants": [
            {"claim": "groups", "value": "admins", "scopes": ["*"]},
            {"claim": "realm_access.roles", "value": "red", "scopes": ["c1/red"]},
        ],
    }
    file = tmp_path / "access.yaml"
    file.write_text(yaml.safe_dump({"issuers": [issuer]}))
    made = Workloads("c1")
    made.add_pod(pod("a", cpu=1, memory=1, namespace="red"))
    async with serving(await log_of(made.events), file=file) as client:
        yield client


async def test_claims_give_scopes_and_the_caller_is_called_as_the_token_says(asked: Client, provider: Provider) -> None:
    admin = await asked.get("/v1/whoami", key=provider.token(groups=["staff", "admins"]))
    assert admin == {"name": "127.0.0.1:ann@x", "scopes": ["*"]}
    red = provider.token(realm_access={"roles": ["red"]}, kai_scopes="c1/blue")
    assert (await asked.get("/v1/whoami", key=red))["scopes"] == ["c1/red", "c1/blue"]
    pods = await asked.get("/v1/clusters/c1/pods", key=red)
    assert [row["namespace"] for row in pods["items"]] == ["red"]
    await asked.get("/v1/clusters/c1/nodes", key=red, status=403)
    await asked.get("/v1/clusters/c2/pods", key=red, status=404)
    assert provider.asked == 1


async def test_a_token_that_is_not_for_us_or_not_the_issuers_is_refused(asked: Client, provider: Provider) -> None:
    now, admins = int(time.time()), {"groups": ["admins"]}
    for refused, why in {
        provider.token(**admins, exp=now - 60): "expired",
        provider.token(**admins, nbf=now + 600): "not yet valid",
        provider.token(**admins, aud="other"): "Audience",
        provider.token(**admins, iss="https://elsewhere"): "no issuer that the access file names",
        provider.token(**admins, key=ec.generate_private_key(ec.SECP256R1())): "Signature verification failed",
        provider.token(**admins, key="x" * 32, algorithm="HS256"): "not valid",
        provider.token(**admins, key=rsa.generate_private_key(65537, 2048), algorithm="RS256"): "not valid",
        provider.token(**admins, email=None): "no claim 'email'",
        provider.token(kai_scopes=["C 1"]): "is none of CLUSTER",
        "nonsense": "no issuer",
        jwt.encode({"iss": provider.url}, None, "none"): "cannot be checked",
    }.items():
        assert why in str(await asked.get("/v1/whoami", key=refused, status=401))
    assert "gives no scope here" in str(await asked.get("/v1/whoami", key=provider.token(), status=403))


async def test_keys_that_an_issuer_changes_are_fetched_once_and_known_ones_count_while_it_is_away(
    asked: Client, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    admins = {"groups": ["admins"]}
    before = provider.token(**admins)
    await asked.get("/v1/whoami", key=before)
    provider.new_key("second")
    await asked.get("/v1/whoami", key=provider.token(**admins), status=401)
    assert provider.asked == 1
    monkeypatch.setattr(oidc, "_ATTEMPT_S", 0.0)
    await asked.get("/v1/whoami", key=provider.token(**admins))
    await asked.get("/v1/whoami", key=before, status=401)
    monkeypatch.setattr(oidc, "_KEYS_S", 0.0)
    provider.away = True
    await asked.get("/v1/whoami", key=provider.token(**admins))


async def test_a_browser_logs_in_with_a_token_and_its_session_ends_with_it(asked: Client, provider: Provider) -> None:
    token = provider.token(groups=["admins"], exp=int(time.time()) + 60)
    path = (await asked.get("/v1/login-tokens", key=token, method="POST"))["path"]
    await asked.get("/login", method="POST", body=f"token={path.partition('#')[2]}", status=303)
    assert (await asked.get("/v1/whoami"))["name"] == "127.0.0.1:ann@x"


@pytest.mark.parametrize(
    ("issuer", "why"),
    [
        ({"issuer": "http://idp.example", "audience": "kai"}, "is no https:// address"),
        ({"issuer": "https://idp.example"}, "audience"),
        (
            {
                "issuer": "https://idp.example",
                "audience": "kai",
                "grants": [{"claim": "g", "value": "v", "scopes": ["A/B/C"]}],
            },
            "g=v: scopes",
        ),
    ],
)
def test_an_issuer_that_makes_no_sense_is_named(tmp_path: Path, issuer: dict[str, Any], why: str) -> None:
    file = tmp_path / "access.yaml"
    file.write_text(yaml.safe_dump({"issuers": [issuer]}))
    with pytest.raises(ConfigurationError, match=why):
        read_access_file(file)
