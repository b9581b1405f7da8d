"""A certificate authority of the server's own, and a certificate from it, made once per data directory and name."""

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from kaicore.runtime.certificates import make_server_certificate

_LIFE = timedelta(days=3650)
_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
_ADDRESSES = ("127.0.0.1", "::1")


def certificate_files(directory: Path, host: str) -> tuple[Path, Path, Path]:
    """Paths of the CA's certificate, the server's and its key; made if they are not there, or not for that host."""
    authority, certificate, key = (directory / name for name in ("ca.crt", "server.crt", "server.key"))
    if not (authority.exists() and certificate.exists() and key.exists() and _is_for(certificate, host)):
        _make(authority, certificate, key, host)
    return authority, certificate, key


def _is_for(certificate: Path, host: str) -> bool:
    parsed = x509.load_pem_x509_certificate(certificate.read_bytes())
    return set(_alternatives(host)) <= set(parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)


def _make(authority: Path, certificate: Path, key: Path, host: str) -> None:
    authority.parent.mkdir(parents=True, exist_ok=True)
    made = make_server_certificate(
        _alternatives(host),
        authority_name="kai-simulator-ca",
        server_name="kai-apiserver",
        now=datetime.now(UTC),
        life=_LIFE,
    )
    key.touch(mode=0o600)
    key.write_bytes(made.key)
    authority.write_bytes(made.authority)
    certificate.write_bytes(made.certificate)


def _alternatives(host: str) -> list[x509.GeneralName]:
    names: list[x509.GeneralName] = [x509.DNSName(name) for name in _NAMES]
    addresses = [ipaddress.ip_address(address) for address in _ADDRESSES]
    try:
        given = ipaddress.ip_address(host)
        if given not in addresses:
            addresses.append(given)
    except ValueError:
        if host not in _NAMES:
            names.append(x509.DNSName(host))
    return names + [x509.IPAddress(address) for address in addresses]
