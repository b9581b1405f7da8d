"""Keys by which callers authenticate to the API.

A key is 256 random bits, so its SHA-256 need not be salted or slow: nobody can try them all. The API has hashes only
(`docs/how-to/api.md`), so a reader of its file learns no key.
"""

import hashlib
import secrets

#: Begins every key, so that people and scanners of secrets see what it is.
KEY_PREFIX = "kai_"

#: Begins every hash of a key.
HASH_PREFIX = "sha256:"


def new_key() -> str:
    """Return a new key."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


def key_hash(key: str) -> str:
    """Return a key's hash as an access file has it: `sha256:` and 64 hexadecimal digits."""
    return HASH_PREFIX + hashlib.sha256(key.encode()).hexdigest()
