"""Files with secrets on disks that fail."""

import os
from pathlib import Path

import pytest
from kaicore.runtime.access.secret_files import kept_secret


def test_a_secret_is_made_once_and_is_its_owners(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    assert [kept_secret(file, lambda: b"first"), kept_secret(file, lambda: b"second")] == [b"first", b"first"]
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_secret_that_could_not_be_written_is_made_when_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that was there with nothing in it, as a full disk left it, was taken for a secret for ever."""
    file = tmp_path / "secret"
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", lambda _: os.open("/dev/full/", os.O_RDONLY))
        with pytest.raises(OSError):  # noqa: PT011  # whichever
            kept_secret(file, lambda: b"first")
    assert not file.exists()
    file.touch()
    assert kept_secret(file, lambda: b"second") == b"second"
