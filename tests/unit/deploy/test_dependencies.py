"""Installed files are locked ones: each file by its hash, and nothing that runs code when it is built."""

import re
from pathlib import Path

import pytest

from scripts import bootstrap
from scripts.bootstrap import Installer, locked, uv_requirement, uv_variables

ROOT = Path(__file__).parents[3]
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_every_locked_package_has_a_version_and_hashes(lock: Path) -> None:
    packages = re.findall(r"^(?=[A-Za-z0-9])((?:.*\\\n)*.*)$", lock.read_text(), flags=re.MULTILINE)
    assert len(packages) > 2
    for package in packages:
        assert re.match(r"[\w.\[\]-]+==\S+", package), package
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", package), package


def test_installation_takes_wheels_with_these_hashes_and_nothing_else() -> None:
    assert locked("dev.lock")[:3] == ("--require-hashes", "--only-binary", ":all:")


def test_uv_is_fetched_by_its_hashes() -> None:
    wanted = uv_requirement((ROOT / "requirements/dev.lock").read_text())
    assert wanted.startswith("uv==")
    assert wanted.count("==") == 1
    assert wanted.count("--hash=sha256:") > 2


@pytest.mark.parametrize(
    ("configured", "shown"),
    [
        ({}, {}),
        ({"index-url": "https://mirror/simple"}, {"UV_DEFAULT_INDEX": "https://mirror/simple"}),
        ({"extra-index-url": "https://a/simple\nhttps://b/simple"}, {"UV_INDEX": "https://a/simple https://b/simple"}),
        ({"find-links": "/opt/wheels /srv/wheels"}, {"UV_FIND_LINKS": "/opt/wheels,/srv/wheels"}),
        (
            {"cert": "/etc/ca with spaces.pem", "timeout": "180"},
            {"SSL_CERT_FILE": "/etc/ca with spaces.pem", "UV_HTTP_TIMEOUT": "180"},
        ),
        (
            {"trusted-host": "mirror:8080", "proxy": "http://p:3128"},
            {"UV_INSECURE_HOST": "mirror:8080", "ALL_PROXY": "http://p:3128"},
        ),
        ({"disable-pip-version-check": "1", "no-index": "true"}, {}),
        ({"client-cert": "/etc/mine.pem"}, None),
    ],
)
def test_uv_is_told_what_pip_is_configured_with_or_is_not_used(
    configured: dict[str, str], shown: dict[str, str] | None
) -> None:
    assert uv_variables(configured) == shown


def test_pip_does_not_offer_a_newer_pip_to_who_installs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[object, ...]] = []
    monkeypatch.setattr(bootstrap, "run", lambda *command: ran.append(command))
    monkeypatch.setattr(bootstrap, "uv_variables", lambda _: None)
    Installer(tmp_path).install(tmp_path, "anything")
    assert [command[-2:] for command in ran if "--disable-pip-version-check" in command] == [("--quiet", "anything")]
