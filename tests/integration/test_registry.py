"""Image and chart in a real registry: pushed as the how-to says, pulled again, the same by every digest.

The registry is the CNCF's `distribution`, the client `oras`; both are built from Go's module proxy, once, which takes a
minute or two of CPU time.
"""

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import helm_python
import pytest

from scripts import chart
from tests.e2e.cluster import answers

PROGRAMS = {
    "registry": "github.com/distribution/distribution/v3/cmd/registry@v3.1.2",
    "oras": "oras.land/oras/cmd/oras@v1.3.6",
}
LAYOUT = Path(os.environ.get("KAI_TEST_IMAGE", ""))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        not os.environ.keys() & {"KAI_TEST_LONG", "KAI_TEST_IMAGE"},
        reason="builds a registry: make image ARGS=--test, or KAI_TEST_LONG=1",
    ),
    pytest.mark.skipif(shutil.which("go") is None, reason="there is no Go on this machine to build a registry with"),
]


@pytest.fixture(scope="module")
def programs() -> Path:
    """The folder of registry and oras."""
    folder = Path(os.environ.get("KAI_TEST_IMAGE_CACHE", Path.home() / ".cache/kai-ledger/image")).resolve() / "go"
    for name, module in PROGRAMS.items():
        if not (folder / name).exists():
            done = subprocess.run(
                ["go", "install", module],
                env={**os.environ, "GOBIN": str(folder)},
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode != 0:
                pytest.skip(f"go install {module}: {done.stderr.strip().splitlines()[-1]}")
    return folder


@pytest.fixture(scope="module")
def registry(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """HOST:PORT of an empty registry."""
    root = tmp_path_factory.mktemp("registry")
    with socket.create_server(("127.0.0.1", 0)) as free:
        place = f"127.0.0.1:{free.getsockname()[1]}"
    config = {
        "version": "0.1",
        "log": {"accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(root / "data")}},
        "http": {"addr": place},
    }
    (root / "config.yml").write_text(json.dumps(config))
    with (root / "log").open("wb") as log:
        process = subprocess.Popen(
            [programs / "registry", "serve", root / "config.yml"],
            env={**os.environ, "OTEL_TRACES_EXPORTER": "none"},
            stdout=log,
            stderr=log,
        )
    try:
        deadline = time.monotonic() + 60
        while not answers(f"http://{place}/v2/"):
            assert process.poll() is None, (root / "log").read_text()
            assert time.monotonic() < deadline, "the registry does not answer"
            time.sleep(0.05)
        yield place
    finally:
        process.terminate()
        process.wait()


@pytest.mark.skipif("KAI_TEST_IMAGE" not in os.environ, reason="no image was built: make image ARGS=--test")
def test_image_is_pushed_and_pulled_with_its_papers_and_every_digest_stays(
    programs: Path, registry: str, tmp_path: Path
) -> None:
    def oras(*arguments: str) -> str:
        return subprocess.run([programs / "oras", *arguments], check=True, capture_output=True, text=True).stdout

    entries = json.loads((LAYOUT / "index.json").read_text())["manifests"]
    (image,) = [one for one in entries if one.get("annotations")]
    version = image["annotations"]["org.opencontainers.image.ref.name"]
    name = f"{registry}/kai-ledger:{version}"
    oras("cp", "-r", "--from-oci-layout", f"{LAYOUT}:{version}", "--to-plain-http", name)
    assert oras("resolve", "--plain-http", name).strip() == image["digest"]
    oras("cp", "-r", "--from-plain-http", name, "--to-oci-layout", f"{tmp_path / 'back'}:{version}")
    blobs = [{path.name for path in (root / "blobs/sha256").iterdir()} for root in (LAYOUT, tmp_path / "back")]
    assert blobs[0] == blobs[1]
    for architecture in ("amd64", "arm64"):
        papers = oras("discover", "--plain-http", "--platform", f"linux/{architecture}", name)
        assert "application/vnd.cyclonedx+json" in papers
    assert "application/vnd.in-toto+json" in oras("discover", "--plain-http", name)


def test_chart_is_pushed_by_helm_and_pulled_as_it_was(registry: str, tmp_path: Path) -> None:
    helm_python.disable_logging()
    packed = Path(helm_python.package(chart.CHART, destination=tmp_path))
    helm_python.push(packed, f"oci://{registry}/charts", plain_http=True)
    (tmp_path / "back").mkdir()
    helm_python.pull(
        f"oci://{registry}/charts/kai-ledger", version=chart.version(), destination=tmp_path / "back", plain_http=True
    )
    assert (tmp_path / "back" / packed.name).read_bytes() == packed.read_bytes()
