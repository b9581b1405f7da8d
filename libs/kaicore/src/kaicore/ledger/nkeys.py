"""NATS' keys: a client proves its identity by signing the server's challenge, and reveals no secret.

A password is sent to whatever listens on the port. A key is not sent: a foreign server learns nothing that it could use
elsewhere. A url names a key by its seed in place of a user: `nats://SU…@host:4222`.

Format: https://docs.nats.io/running-a-nats-service/configuration/securing_nats/auth_intro/nkey_auth and
https://github.com/nats-io/nkeys (strkey.go): base32 of a prefix, the key, and CRC-16/XMODEM of both, low byte first.
"""

import base64
import binascii
import secrets
from urllib.parse import urlsplit, urlunsplit

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kaicore.errors import ConfigurationError

#: Prefixes of a user's public key, and of a user's seed, which is spread over two bytes.
_USER = 20 << 3
_SEED = bytes([(18 << 3) | (_USER >> 5), (_USER & 31) << 3])

#: Bytes of an Ed25519 seed.
_SIZE = 32


class Nkey:
    """A user's key."""

    def __init__(self, seed: str) -> None:
        """Args: seed: `SU…`. Raises ConfigurationError: it is no seed of a user's key."""
        try:
            data = base64.b32decode(seed + "=" * (-len(seed) % 8))
        except binascii.Error:
            data = b""
        body, check = data[:-2], data[-2:]
        if len(body) != len(_SEED) + _SIZE or not body.startswith(_SEED) or _check(body) != check:
            # Without the seed, which is a secret even with a slip of the pen in it.
            raise ConfigurationError("nats url: its user is no seed of a user's key (SU...)")
        self._key = Ed25519PrivateKey.from_private_bytes(body[len(_SEED) :])
        self.public = _encoded(bytes([_USER]) + self._key.public_key().public_bytes_raw())

    def sign(self, nonce: str) -> bytes:
        """Return the signature of what a server greets us with, as it wants it."""
        return base64.b64encode(self._key.sign(nonce.encode()))


def new_seed() -> str:
    """Make a new key; return its seed."""
    return _encoded(_SEED + secrets.token_bytes(_SIZE))


def key_of(url: str) -> tuple[str, Nkey | None]:
    """Return a url without the seed in it, and the key; None if it has none.

    Raises ConfigurationError: what stands for a seed is none.
    """
    parts = urlsplit(url)
    if parts.username is None or parts.password is not None or not parts.username.startswith("SU"):
        return url, None
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])), Nkey(parts.username)


def _encoded(body: bytes) -> str:
    return base64.b32encode(body + _check(body)).decode().rstrip("=")


def _check(body: bytes) -> bytes:
    return binascii.crc_hqx(body, 0).to_bytes(2, "little")
