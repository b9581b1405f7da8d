"""Urls of NATS servers, with our credentials and the trusted authority, as in the urls of Postgres.

```
nats://user:password@host:4222      a password is sent: only where nobody else can listen
nats://SU…@host:4222                the seed of a key, which is not sent
tls://host:4222?nkey=FILE&ca=FILE   the seed in a file, and the authority that signed the server's certificate
```

With `tls://` the server must show a certificate for its host's name, by an authority in `ca` (by default one that the
system trusts), before anything is sent to it. `cert` and `key` are files of a client's certificate.
"""

import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from kaicore.errors import ConfigurationError
from kaicore.ledger.bus.nkeys import Nkey, key_of
from kaicore.spelling import did_you_mean

#: What a url may say behind `?`: names of files.
_FILES = ("nkey", "ca", "cert", "key")


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """How servers are reached.

    Attributes:
        servers: their urls, without secrets of keys.
        key: who we are; None where the urls say so otherwise, or not at all.
        tls: how servers are to prove who they are; None without TLS.
    """

    servers: Sequence[str]
    key: Nkey | None
    tls: ssl.SSLContext | None


def server_access(urls: str) -> ServerAccess:
    """Read urls, with commas between them; what one of them says of keys and certificates holds for all.

    Raises:
        ConfigurationError: a url cannot be one, or a file of it cannot be read.
    """
    servers: list[str] = []
    keys: list[Nkey] = []
    files: dict[str, str] = {}
    for url in (_checked(one.strip()) for one in urls.split(",")):
        parts = urlsplit(url)
        for name, value in parse_qsl(parts.query, keep_blank_values=True):
            if name not in _FILES:
                raise ConfigurationError(
                    f"nats url: ?{name}= is none of {', '.join(_FILES)}{did_you_mean(name, _FILES)}"
                )
            files[name] = value
        server, key = key_of(urlunsplit(parts._replace(query="")))
        servers.append(server)
        keys += [] if key is None else [key]
    if "nkey" in files:
        keys.insert(0, Nkey(_text(files["nkey"], "nkey").strip()))
    schemes = {urlsplit(server).scheme for server in servers}
    if schemes != {"tls"}:
        for name in ("ca", "cert", "key"):
            if name in files:
                raise ConfigurationError(f"nats url: ?{name}= is of TLS: every url must begin with tls://")
        if "tls" in schemes:
            raise ConfigurationError("nats url: some begin with tls:// and some do not: all must, or none")
        return ServerAccess(servers, keys[0] if keys else None, None)
    return ServerAccess(servers, keys[0] if keys else None, _context(files))


def _context(files: dict[str, str]) -> ssl.SSLContext:
    _text(files.get("ca", os.devnull), "ca")
    try:
        context = ssl.create_default_context(cafile=files.get("ca"))
        if "cert" in files:
            context.load_cert_chain(files["cert"], files.get("key"))
    except (ssl.SSLError, OSError) as error:
        raise ConfigurationError(f"nats url: its certificates cannot be used: {error}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _text(path: str, name: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "is no text"
        raise ConfigurationError(f"nats url: ?{name}={path}: {problem}") from error


def _checked(url: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"nats", "tls"} and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        # Without user information, which may hold a password.
        raise ConfigurationError(
            f"no url of a NATS server, such as nats://host:4222 or tls://host:4222: {url.rpartition('@')[2]!r}"
        )
    return url
