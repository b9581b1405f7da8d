"""Access by kubeconfigs of all sorts and by a pod's service account, as kubernetes-asyncio reads them."""

import asyncio
import base64
import datetime as dt
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from kaicore.errors import ConfigurationError
from kaicore.kube.api import service_account
from kaicore.kube.api.access import configured_access, plain_access

EXEC_PLUGIN = """#!{python}
import json, pathlib, sys
count = pathlib.Path(sys.argv[1])
count.write_text(str(int(count.read_text()) + 1 if count.exists() else 1))
print(json.dumps({{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
                   "status": {{"token": "token-" + count.read_text()}}}}))
"""


@pytest.fixture(scope="module")
def certificate() -> tuple[str, str]:
    """A self-signed certificate and its key, PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return made.public_bytes(serialization.Encoding.PEM).decode(), private.decode()


def kubeconfig(directory: Path, *, user: dict[str, Any], server: str = "http://api:8080/", **cluster: Any) -> str:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "one",
        "contexts": [
            {"name": "one", "context": {"cluster": "c", "user": "u"}},
            {"name": "two", "context": {"cluster": "d", "user": "u"}},
        ],
        "clusters": [
            {"name": "c", "cluster": {"server": server, **cluster}},
            {"name": "d", "cluster": {"server": "http://other"}},
        ],
        "users": [{"name": "u", "user": user}],
    }
    path = directory / "config"
    path.write_text(yaml.safe_dump(document))
    return str(path)


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


async def test_kubeconfig_with_a_token_sends_it() -> None:
    access = await plain_access("http://x:1/", token="t")()
    assert (access.base_url, await access.headers()) == ("http://x:1", {"Authorization": "Bearer t"})
    assert await (await plain_access("http://x:1")()).headers() == {}


async def test_kubeconfig_with_several_contexts_uses_the_current_one(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, user={"token": "secret"})
    access = await configured_access(path)()
    assert (access.base_url, access.tls) == ("http://api:8080", None)
    assert await access.headers() == {"authorization": "Bearer secret"}
    assert (await configured_access(path, context="two")()).base_url == "http://other"


async def test_token_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("one")
    source = configured_access(kubeconfig(tmp_path, user={"tokenFile": str(token)}))
    assert await (await source()).headers() == {"authorization": "Bearer one"}
    token.write_text("two")
    assert await (await source()).headers() == {"authorization": "Bearer two"}


async def test_an_exec_plugin_runs_whenever_access_is_read(tmp_path: Path) -> None:
    plugin = tmp_path / "plugin"
    plugin.write_text(EXEC_PLUGIN.format(python=sys.executable))
    plugin.chmod(plugin.stat().st_mode | stat.S_IXUSR)
    user = {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": str(plugin),
            "args": [str(tmp_path / "count")],
        }
    }
    source = configured_access(kubeconfig(tmp_path, user=user))
    assert await (await source()).headers() == {"authorization": "Bearer token-1"}
    assert await (await source()).headers() == {"authorization": "Bearer token-2"}


async def test_kubeconfig_with_client_certificates_presents_them(tmp_path: Path, certificate: tuple[str, str]) -> None:
    public, private = certificate
    path = kubeconfig(
        tmp_path,
        server="https://api:6443",
        user={"client-certificate-data": encoded(public), "client-key-data": encoded(private)},
        **{"certificate-authority-data": encoded(public), "tls-server-name": "kubernetes", "proxy-url": "http://p:1"},
    )
    access = await configured_access(path)()
    assert access.tls is not None
    assert access.tls.check_hostname
    assert len(access.tls.get_ca_certs()) == 1
    assert (access.server_hostname, access.proxy) == ("kubernetes", "http://p:1")
    assert await access.headers() == {}


@pytest.mark.parametrize(
    ("server", "proxy"),
    [
        ("https://api.example:6443", "http://user:secret@secure:3128"),
        ("http://api.example", "http://plain:3128"),
        ("https://api.internal:6443", ""),
        ("https://10.0.0.1:6443", ""),
        ("https://10.0.0.1:443", "http://user:secret@secure:3128"),
        ("http://localhost:8080", ""),
        ("http://127.0.0.2:8080", ""),
        ("https://[::1]:6443", ""),
    ],
)
async def test_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch, server: str, proxy: str) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://user:secret@secure:3128")
    monkeypatch.setenv("http_proxy", "http://plain:3128")
    monkeypatch.setenv("no_proxy", ".internal,10.0.0.1:6443")
    assert (await plain_access(server)()).proxy == proxy


async def test_a_proxy_that_speaks_no_http(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, server="http://api", user={"token": "t"}, **{"proxy-url": "socks5://p:1"})
    with pytest.raises(ConfigurationError, match="socks5://p:1"):
        await configured_access(path)()


async def test_insecure_server_is_not_verified(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, server="https://api", user={"token": "t"}, **{"insecure-skip-tls-verify": True})
    access = await configured_access(path)()
    assert access.tls is not None
    assert not access.tls.check_hostname


@pytest.mark.parametrize("content", ["", "nonsense", "{}", "contexts: 7\ncurrent-context: x\n", "\t: x"])
async def test_malformed_kubeconfig_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "config"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match="config"):
        await configured_access(str(path))()


async def test_missing_kubeconfig_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="nowhere"):
        await configured_access(str(tmp_path / "nowhere"))()


async def test_exec_plugin_that_fails_is_named_with_its_output(tmp_path: Path) -> None:
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/false"}}
    with pytest.raises(ConfigurationError, match="returned 1"):
        await configured_access(kubeconfig(tmp_path, user=user))()


async def test_service_account_of_a_pod_is_used_in_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, certificate: tuple[str, str]
) -> None:
    token, authority = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text("sa\n")
    authority.write_text(certificate[0])
    monkeypatch.setattr(service_account, "SERVICE_ACCOUNT", tmp_path)
    monkeypatch.setattr(service_account, "TOKEN_S", 0.0)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    access = await configured_access()()
    assert access.base_url == "https://[fd00::1]:443"
    assert access.tls is not None
    assert await access.headers() == {"Authorization": "Bearer sa"}
    token.write_text("renewed")
    assert await access.headers() == {"Authorization": "Bearer renewed"}
    token.write_text("")
    assert await access.headers() == {"Authorization": "Bearer renewed"}, "until there is another one"
    for spoilt, problem in ((token, "token is empty"), (authority, "service account")):
        spoilt.write_text("")
        with pytest.raises(ConfigurationError, match=problem):
            await configured_access()()
        token.write_text("sa")
    token.unlink()
    with pytest.raises(ConfigurationError, match="No such file"):
        await configured_access()()


def test_the_library_is_not_imported_before_it_is_needed() -> None:
    async def check() -> None:
        program = "import sys, kaicore.kube.api.reflector; sys.exit('kubernetes_asyncio' in sys.modules)"
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
        assert await process.wait() == 0

    asyncio.run(check())
