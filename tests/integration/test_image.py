"""The image that `make image ARGS=--test` built: the same from another folder; its services run on a read-only root.

It is not built for an ordinary run of the tests: that takes a minute of CPU time and some 120 MB of downloads.
"""

import io
import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import zstandard

from tests.e2e.cluster import answers
from tests.integration.test_production_environment import SERVICES

ROOT = Path(__file__).parents[2]
LAYOUT = Path(os.environ.get("KAI_TEST_IMAGE", ""))
PATIENCE_S = 120.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif("KAI_TEST_IMAGE" not in os.environ, reason="no image was built: make image ARGS=--test"),
]
runs_here = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="only root can make a folder a read-only root"
)

Json = dict[str, Any]


def blob(reference: Json) -> bytes:
    return (LAYOUT / "blobs" / reference["digest"].replace(":", "/")).read_bytes()


def index() -> Json:
    return dict(json.loads((LAYOUT / "index.json").read_text())["manifests"][0])


def image(architecture: str) -> Json:
    manifests = json.loads(blob(index()))["manifests"]
    (reference,) = [one for one in manifests if one["platform"]["architecture"] == architecture]
    return dict(json.loads(blob(reference)))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image's files, for this machine's architecture."""
    folder = tmp_path_factory.mktemp("image")
    folder.chmod(0o755)
    for parent in folder.parents[:2]:
        parent.chmod(0o755)
    for layer in image({"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine])["layers"]:
        plain = zstandard.ZstdDecompressor().decompressobj().decompress(blob(layer))
        with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
            tar.extractall(folder, filter="fully_trusted")
    return folder


def command(root: Path, *arguments: str) -> list[str]:
    """A command in the image as a container of it runs: its root read-only, its user and variables the image's."""
    config = json.loads(blob(image("amd64")["config"]))["config"]
    user = config["User"]
    script = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec env -i "$@"'
    chroot = [shutil.which("chroot") or "chroot", f"--userspec={user}", f"--groups={user.partition(':')[0]}", str(root)]
    variables = [variable for variable in config["Env"] if not variable.startswith("KAI_HTTP")]
    return ["unshare", "--mount", "sh", "-c", script, str(root), *variables, *chroot, *arguments]


def test_another_folder_gives_the_same_digest(tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere"
    subprocess.run(["git", "clone", "--quiet", ROOT, copy], check=True)
    changed = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True)
    if changed.stdout:
        pytest.skip("the checkout has changes that are not committed, which a copy of it has not")
    cache = os.environ["KAI_TEST_IMAGE_CACHE"]
    build = [sys.executable, "-m", "scripts.image", "--output", str(tmp_path / "image"), "--cache", cache]
    done = subprocess.run(build, cwd=copy, capture_output=True, text=True, check=False, umask=0o077)
    assert done.stdout.strip() == index()["digest"], done.stderr


def test_both_architectures_have_bill_and_labels_and_run_as_nobody() -> None:
    attached = json.loads((LAYOUT / "index.json").read_text())["manifests"][1:]
    subjects = {json.loads(blob(one))["subject"]["digest"]: one["artifactType"] for one in attached}
    platforms = {one["digest"] for one in json.loads(blob(index()))["manifests"]}
    assert {subject for subject, kind in subjects.items() if "cyclonedx" in kind} == platforms
    assert "in-toto" in subjects[index()["digest"]]
    for architecture in ("amd64", "arm64"):
        config = json.loads(blob(image(architecture)["config"]))
        assert (config["architecture"], config["config"]["User"]) == (architecture, "65532:65532")
        assert config["config"]["Labels"]["org.opencontainers.image.title"] == "kai-ledger"


@runs_here
@pytest.mark.parametrize("service", ["kai", *SERVICES])
def test_program_of_the_image_says_what_it_takes(root: Path, service: str) -> None:
    done = subprocess.run(
        command(root, f"/opt/kai/bin/{service}", "--help"), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert service in done.stdout


@runs_here
def test_image_has_no_shell_writes_nowhere_and_trusts_the_usual_authorities(root: Path) -> None:
    script = (
        "import os, ssl\n"
        "assert os.getuid() == 65532 and not os.path.exists('/bin/sh')\n"
        "assert ssl.create_default_context().cert_store_stats()['x509_ca'] > 50\n"
        "try: open('/opt/kai/x', 'w')\n"
        "except OSError as error: print(error.strerror)\n"
        "try: open('/tmp/x', 'w')\n"
        "except OSError as error: print(error.strerror)\n"
    )
    done = subprocess.run(
        command(root, "/opt/kai/bin/python", "-c", script), capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == ["Read-only file system"] * 2, done.stderr


@runs_here
def test_services_of_the_image_migrate_a_log_and_are_ready_on_it(
    root: Path, empty_database_url: str, nats_url: str
) -> None:
    log = ["--database-url", empty_database_url]
    both = [*log, "--nats-url", nats_url]
    done = subprocess.run(command(root, "/opt/kai/bin/kai", "migrate", *log), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    options = {
        "kai-relay": both,
        "kai-projector": both,
        "kai-scheduler": [*both, "--cluster", "image"],
        "kai-api": [*log, "--anonymous", "loopback"],
    }
    processes: dict[str, subprocess.Popen[bytes]] = {}
    with ExitStack() as stack:
        for service, arguments in options.items():
            listens = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            handed = ["--http-fd", str(listens.fileno())]
            process = subprocess.Popen(
                command(root, f"/opt/kai/bin/{service}", *arguments, *handed), pass_fds=[listens.fileno()]
            )
            processes[f"http://127.0.0.1:{listens.getsockname()[1]}/readyz"] = process
            stack.callback(process.kill)
        deadline = time.monotonic() + PATIENCE_S
        for url, process in processes.items():
            while not answers(url):
                assert process.poll() is None
                assert time.monotonic() < deadline, url
                time.sleep(0.1)
        for process in processes.values():
            process.terminate()
        assert [process.wait(PATIENCE_S) for process in processes.values()] == [0] * len(processes)
