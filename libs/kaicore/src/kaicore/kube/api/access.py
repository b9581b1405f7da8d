"""Access to an API server: its address, TLS and credentials.

kubernetes-asyncio reads kubeconfigs completely (client certificates, tokens, token files, exec plugins, OIDC, proxies).
It is imported only when needed, and without its client (`kubeconfig_reader`). The service account of a pod is two
files, which are read without it.
"""

import os
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import yaml

from kaicore.errors import ClusterUnavailable, ConfigurationError
from kaicore.kube.api.service_account import ServiceAccount, in_a_pod
from kaicore.yaml_text import place_of_fault


@dataclass(frozen=True, slots=True)
class Access:
    """The settings for requests to an API server.

    Attributes:
        base_url: `https://host:port`, without a slash at the end.
        tls: None for plain HTTP.
        server_hostname: what the server's certificate says instead of the address; empty for the address.
        proxy: url of the proxy; empty for none.
        headers: called for every request, for tokens are renewed.
    """

    base_url: str
    headers: Callable[[], Awaitable[dict[str, str]]]
    tls: ssl.SSLContext | None = None
    server_hostname: str = ""
    proxy: str = ""


#: What kubernetes-asyncio raises of a kubeconfig that makes no sense, besides its own.
_SENSELESS = (OSError, ValueError, TypeError, LookupError, AttributeError, AssertionError)

#: Reads the access anew; used when the server no longer takes the credentials.
AccessSource = Callable[[], Awaitable[Access]]


def plain_access(base_url: str, *, token: str = "") -> AccessSource:
    """Return access by a url and a bearer token, for simulated API servers and `kubectl proxy`."""

    async def headers() -> dict[str, str]:
        return {"Authorization": f"Bearer {token}"} if token else {}

    async def read() -> Access:
        return Access(base_url.rstrip("/"), headers, proxy=_proxy(base_url))

    return read


def configured_access(kubeconfig: str = "", *, context: str = "") -> AccessSource:
    """Return access by a kubeconfig or, where none is named, by the pod's service account or the usual kubeconfig.

    Reading it raises `ConfigurationError` for a configuration that is missing or makes no sense, or if its exec plugin
    fails, and `ClusterUnavailable` where an issuer of tokens does not answer.

    Args:
        kubeconfig: a path or several, as in `$KUBECONFIG`.
        context: of the kubeconfig; by default its current one.
    """

    async def read() -> Access:
        if not kubeconfig and in_a_pod():
            return _service_account()
        _insist_on_a_file(kubeconfig)
        from kaicore.kube.api.kubeconfig_reader import Configuration, config  # noqa: PLC0415  # see the module's docstring

        configuration = Configuration()
        try:
            await config.load_kube_config(
                config_file=kubeconfig or None,
                context=context or None,
                client_configuration=configuration,
                persist_config=False,
            )
            return _access(configuration)
        except yaml.YAMLError as error:
            where = kubeconfig or "the default kubeconfig"
            raise ConfigurationError(f"cannot get access to Kubernetes by {where}: {place_of_fault(error)}") from None
        except (config.ConfigException, *_SENSELESS) as error:
            where = kubeconfig or "the default kubeconfig"
            raise ConfigurationError(f"cannot get access to Kubernetes by {where}: {error}") from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ClusterUnavailable(f"the credentials' issuer does not answer: {error}") from error

    return read


def _service_account() -> Access:
    account = ServiceAccount()

    async def headers() -> dict[str, str]:
        return {"Authorization": f"Bearer {account.token()}"}

    return Access(account.base_url, headers, tls=account.tls, proxy=_proxy(account.base_url))


def _insist_on_a_file(kubeconfig: str) -> None:
    paths = [Path(path).expanduser() for path in kubeconfig.split(os.pathsep) if path]
    if paths and not any(path.is_file() for path in paths):
        raise ConfigurationError(f"{kubeconfig}: no such kubeconfig")


def _access(configuration: Any) -> Access:
    async def headers() -> dict[str, str]:
        settings = await configuration.auth_settings()
        return {
            str(setting["key"]): str(setting["value"])
            for setting in settings.values()
            if setting["in"] == "header" and setting["value"]
        }

    base_url = str(configuration.host).rstrip("/")
    return Access(
        base_url,
        headers,
        tls=_tls(configuration) if base_url.startswith("https:") else None,
        server_hostname=configuration.tls_server_name or "",
        proxy=_proxy(base_url, str(configuration.proxy or "")),
    )


def _proxy(base_url: str, configured: str = "") -> str:
    """Return the proxy that is configured or else that the environment names, by the rules of Go's net/http.

    Raises ConfigurationError: it is no HTTP proxy.
    """
    parts = urlsplit(base_url)
    proxy = configured
    if not proxy and not _is_loopback(parts.hostname or "") and not proxy_bypass(parts.netloc):
        proxy = getproxies().get(parts.scheme, "")
    if proxy and urlsplit(proxy).scheme not in ("http", "https"):
        raise ConfigurationError(f"the proxy for {base_url} is {proxy}: only http:// and https:// proxies can be used")
    return proxy


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _tls(configuration: Any) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if configuration.disable_strict_ssl_verification:
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
