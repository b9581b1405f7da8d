"""A certificate authority of the server's own, and a certificate from it, made once per data directory and name."""

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

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
    now = datetime.now(UTC)
    ca_key, server_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kai-simulator-ca")])
    server_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kai-apiserver")])
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    ca_certificate = (
        _builder(ca_name, ca_name, ca_key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    server_certificate = (
        _builder(server_name, ca_name, server_key.public_key(), now)
        .add_extension(x509.SubjectAlternativeName(_alternatives(host)), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    key.touch(mode=0o600)
    key.write_bytes(
        server_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    authority.write_bytes(ca_certificate.public_bytes(serialization.Encoding.PEM))
    certificate.write_bytes(server_certificate.public_bytes(serialization.Encoding.PEM))


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, now: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + _LIFE)
    )


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
