"""Credentials that `kai up` gives its API, for its own commands and a browser, and for nobody else."""

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from kaicore.runtime.access.access_file import key_hash, new_key


@dataclass(frozen=True, slots=True)
class ApiAccess:
    """A folder of a data directory, readable for its owner only: a key, an access file with its hash, a secret."""

    directory: Path

    @property
    def access_file(self) -> Path:
        """The file that the API reads; entries that an operator adds to it stay."""
        return self.directory / "access.yaml"

    @property
    def session_secret_file(self) -> Path:
        """Signs browsers' sessions, so that they outlive the API's process."""
        return self.directory / "session-secret"

    def key(self) -> str:
        """Return the key, which is made at the first start."""
        file = self.directory / "key"
        self.directory.mkdir(mode=0o700, exist_ok=True)
        if not file.exists():
            key = new_key()
            write_secret(self.session_secret_file, secrets.token_urlsafe(32))
            entry = f"keys:\n- name: kai-up\n  hash: {key_hash(key)}\n  scopes: ['*']\n"
            write_secret(self.access_file, entry)
            write_secret(file, key)
        return file.read_text()

    def environment(self) -> dict[str, str]:
        """Return the settings of the API."""
        return {
            "KAI_ACCESS_FILE": str(self.access_file),
            "KAI_SESSION_SECRET_FILE": str(self.session_secret_file),
        }


def write_secret(path: Path, text: str) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    partial = path.with_name(f"{path.name}.new")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    partial.replace(path)
