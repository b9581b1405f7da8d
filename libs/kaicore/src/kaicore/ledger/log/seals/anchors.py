"""Anchors: positions and hashes of a log's chain, stored where the log's writers cannot reach them.

A file of anchors has one JSON object a line, each with the digest of the line before it. Lines are signed where a key
is given: Ed25519 with a private key in PEM, HMAC-SHA256 with any other secret. A chain alone cannot show that its tail
was cut off, or that it was computed anew; both contradict an anchor. A forged anchor contradicts its signature or the
lines after it.
"""

import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kaicore.errors import ConfigurationError, InvalidObject
from kaicore.ledger.log.port import Head, Seal

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

ED25519, HMAC = "ed25519", "hmac-sha256"

#: A shorter secret can be guessed.
_LEAST_SECRET = 16

_HASH_BYTES = 32


class Anchor(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A line of such a file.

    Attributes:
        position: of its last event then.
        hash: of that event, hex.
        recorded_at: of that event, microseconds since the epoch.
        sealed_at: when this was written, microseconds since the epoch.
        retired_position: the last position that had left the log with an old month; 0 where none had.
        retired_hash: of that event, hex.
        previous: SHA-256 of the line before this one, hex; empty in the first.
        algorithm: of the signature; empty without one.
        signature: over the line without it, hex.
    """

    cluster: str
    position: int
    hash: str
    recorded_at: int
    sealed_at: int
    retired_position: int = 0
    retired_hash: str = ""
    previous: str = ""
    algorithm: str = ""
    signature: str = ""

    def hashes(self) -> dict[int, bytes]:
        """Return the hashes that it vouches for, by position."""
        hex_by_position = {self.position: self.hash, self.retired_position: self.retired_hash}
        return {position: bytes.fromhex(text) for position, text in hex_by_position.items() if position}


_encoder = msgspec.json.Encoder(order="deterministic")
_decoder = msgspec.json.Decoder(Anchor)


@dataclass(frozen=True, slots=True)
class Key:
    """The keys that sign or check anchors: one of an Ed25519 key, private or public, and a secret."""

    private: "Ed25519PrivateKey | None" = None
    public: "Ed25519PublicKey | None" = None
    secret: bytes = b""

    @classmethod
    def read(cls, data: bytes, *, name: str) -> "Key":
        """Return the key that a file holds: PEM, or else a secret.

        Raises ConfigurationError: it is PEM of no Ed25519 key, or a secret that is too short.
        """
        if b"-----BEGIN" not in data:
            secret = data.strip()
            if len(secret) < _LEAST_SECRET:
                raise ConfigurationError(
                    f"{name}: a secret of {len(secret)} bytes is too short: {_LEAST_SECRET} or more"
                )
            return cls(secret=secret)
        # Some 50 ms of imports that hardly any command needs.
        from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415
            Ed25519PrivateKey,
            Ed25519PublicKey,
        )
        from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415
            load_pem_private_key,
            load_pem_public_key,
        )

        try:
            if b"PRIVATE KEY" in data:
                private = load_pem_private_key(data, password=None)
                if isinstance(private, Ed25519PrivateKey):
                    return cls(private=private, public=private.public_key())
            public = load_pem_public_key(data) if b"PUBLIC KEY" in data else None
            if isinstance(public, Ed25519PublicKey):
                return cls(public=public)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise ConfigurationError(f"{name}: not an Ed25519 key in PEM without a password: {error}") from error
        raise ConfigurationError(f"{name}: not an Ed25519 key in PEM")

    @property
    def algorithm(self) -> str:
        """The signature's method."""
        return HMAC if self.secret else ED25519

    def sign(self, content: bytes) -> bytes:
        """Sign. Raises ConfigurationError: it is a public key."""
        if self.secret:
            return hmac.digest(self.secret, content, "sha256")
        if self.private is None:
            raise ConfigurationError("a public key cannot sign: give the private one")
        return self.private.sign(content)

    def fits(self, content: bytes, signature: bytes) -> bool:
        """Tell whether a signature is this key's over some content."""
        if self.secret:
            return hmac.compare_digest(hmac.digest(self.secret, content, "sha256"), signature)
        from cryptography.exceptions import InvalidSignature  # noqa: PLC0415

        assert self.public is not None
        try:
            self.public.verify(signature, content)
        except InvalidSignature:
            return False
        return True


def read_file(file: Path) -> bytes:
    """Return what a file of a key or a token holds. Raises ConfigurationError: it cannot be read."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be read: {error.strerror}") from error


def anchor_line(
    cluster: str, head: Head, *, seals: Sequence[Seal], sealed_at: int, before: str, key: Key | None
) -> str:
    """Return a line that vouches for a log's head.

    Args:
        sealed_at: microseconds since the epoch.
        before: the file's last line; empty if there is none.
        key: to sign with, if any.
    """
    anchor = Anchor(
        cluster=cluster,
        position=head.position,
        hash=head.hash.hex(),
        recorded_at=head.recorded_at,
        sealed_at=sealed_at,
        retired_position=seals[-1].position if seals else 0,
        retired_hash=seals[-1].hash.hex() if seals else "",
        previous=_digest(before) if before else "",
        algorithm=key.algorithm if key is not None else "",
    )
    if key is not None:
        anchor = msgspec.structs.replace(anchor, signature=key.sign(_encoder.encode(anchor)).hex())
    return _encoder.encode(anchor).decode()


def read_anchors(text: str, *, name: str, key: Key | None = None, first: bool = True) -> list[Anchor]:
    """Read a file of anchors.

    Raises InvalidObject: naming file, line and field: it is no anchor, was changed, or is not signed with the key.

    Args:
        key: with which each line must be signed; None takes them on trust.
        first: whether its first line is the first of all; otherwise what that says of the line before is not checked.
    """
    anchors: list[Anchor] = []
    before = ""
    for number, line in enumerate(text.splitlines(), start=1):
        about = f"{name}: line {number}"
        try:
            anchor = _decoder.decode(line)
            hashes = anchor.hashes().values()
        except (msgspec.DecodeError, ValueError) as error:
            raise InvalidObject(about, "anchor", line[:80], f"is none: {error}") from error
        if anchor.position < 0 or any(len(digest) != _HASH_BYTES for digest in hashes):
            raise InvalidObject(about, "hash", anchor.hash, "is no SHA-256 of a position")
        if (before or first) and anchor.previous != (_digest(before) if before else ""):
            raise InvalidObject(about, "previous", anchor.previous, "is not the digest of the line before it")
        if key is not None:
            _check_signature(anchor, key, about)
        anchors.append(anchor)
        before = line
    return anchors


def hashes_of(anchors: Iterable[Anchor]) -> dict[str, dict[int, bytes]]:
    """Return what anchors vouch for: by cluster and position, the hash. Raises InvalidObject: two of them disagree."""
    by_cluster: dict[str, dict[int, bytes]] = {}
    for anchor in anchors:
        by_position = by_cluster.setdefault(anchor.cluster, {})
        for position, digest in anchor.hashes().items():
            if by_position.setdefault(position, digest) != digest:
                about = f"anchors of cluster {anchor.cluster}"
                raise InvalidObject(
                    about, f"position {position}", digest.hex(), f"another says {by_position[position].hex()}"
                )
    return by_cluster


def _check_signature(anchor: Anchor, key: Key, about: str) -> None:
    if anchor.algorithm != key.algorithm:
        raise InvalidObject(about, "algorithm", anchor.algorithm, f"is not the key's, {key.algorithm}")
    content = _encoder.encode(msgspec.structs.replace(anchor, signature=""))
    try:
        signature = bytes.fromhex(anchor.signature)
    except ValueError:
        signature = b""
    if not key.fits(content, signature):
        raise InvalidObject(about, "signature", anchor.signature[:16], "is not the key's for this line: it is forged")


def _digest(line: str) -> str:
    return sha256(line.encode()).hexdigest()
