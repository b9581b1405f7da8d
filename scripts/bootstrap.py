"""Create `.venv` and install the locked dependencies and this project into it, tools of development included.

With a folder as its argument: create an environment there with what production needs and nothing else, the project as a
wheel. It needs neither a compiler nor this checkout afterwards.

Standard library only, because it runs before anything is installed. It installs from the hash-checked lock in
`requirements/`, so two machines get the same bytes, and it uses whatever index and certificates pip is configured with.
"""

import hashlib
import os
import re
import ssl
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
REQUIREMENTS = ROOT / "requirements"
#: What a checkout is installed as: the product, and the two tools of its demonstrations and tests.
EDITABLE = (".", "tools/fleet", "tools/apiserver")
MINIMUM = (3, 11)
#: The pip that is fetched where Python brings none, as on a bare Debian.
PIP_WHEEL = "pip-25.3-py3-none-any.whl"
PIP_SHA256 = "9655943313a94722b7774661c21049070f6bbb0a1516bf02f7c8d5d9201514cd"


def run(*command: str | Path) -> None:
    subprocess.run([str(part) for part in command], check=True, cwd=ROOT)


def create_venv(venv: Path) -> None:
    """Create an environment with pip in it, also where Debian has split `ensurepip` off."""
    made = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", str(venv)], check=False, capture_output=True, text=True
    )
    if made.returncode == 0:
        return
    virtualenv = subprocess.run(
        [sys.executable, "-m", "virtualenv", "--clear", str(venv)],
        check=False,
        capture_output=True,
        text=True,
    )
    if virtualenv.returncode == 0:
        return
    bare = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", "--without-pip", str(venv)],
        check=False,
        capture_output=True,
        text=True,
    )
    if bare.returncode != 0:
        sys.exit(f"bootstrap: {sys.executable} can make no environment: {(bare.stdout + bare.stderr).strip()}")
    system_pip = subprocess.run([sys.executable, "-m", "pip", "--version"], check=False, capture_output=True)
    if system_pip.returncode == 0:
        run(sys.executable, "-m", "pip", "--python", python_of(venv), "install", "--quiet", "pip")
    else:
        install_fetched_pip(venv)


def python_of(venv: Path) -> Path:
    return venv / "bin" / "python"


def install_fetched_pip(venv: Path) -> None:
    """Install pip from its wheel, which can be run as it is."""
    index = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/") + "/pip/"
    # A bare machine has no certificates either; the digest says whether it is what it should be.
    unverified = ssl._create_unverified_context()  # noqa: S323, SLF001
    try:
        with urllib.request.urlopen(index, context=unverified) as answer:  # noqa: S310
            link = re.search(f'href="([^"]*{re.escape(PIP_WHEEL)})[#"]', answer.read().decode())
        if link is None:
            sys.exit(f"bootstrap: {index} has no {PIP_WHEEL}: install Debian's python3-venv")
        with urllib.request.urlopen(urllib.parse.urljoin(index, link[1]), context=unverified) as answer:  # noqa: S310
            content = answer.read()
    except OSError as error:
        sys.exit(f"bootstrap: pip cannot be fetched from {index} ({error}): install Debian's python3-venv")
    if hashlib.sha256(content).hexdigest() != PIP_SHA256:
        sys.exit(f"bootstrap: {PIP_WHEEL} from {index} is not what it should be: its SHA-256 differs")
    with tempfile.TemporaryDirectory() as directory:
        wheel = Path(directory) / PIP_WHEEL
        wheel.write_bytes(content)
        run(python_of(venv), wheel / "pip", "install", "--quiet", "--no-index", "--no-deps", wheel)


def main() -> None:
    if sys.version_info < MINIMUM:
        sys.exit(
            f"bootstrap: Python {'.'.join(map(str, MINIMUM))} or newer is needed, {sys.executable} is "
            f"{sys.version.split()[0]}; name another one: make PYTHON=/usr/bin/python3.12 ..."
        )
    # As root pip warns about root; in an environment of our own that is noise.
    os.environ["PIP_ROOT_USER_ACTION"] = "ignore"
    if sys.argv[1:]:
        install_for_production(Path(sys.argv[1]).absolute())
    else:
        install(VENV, "dev.lock")
        pip(VENV, "--no-deps", "--no-build-isolation", *(part for path in EDITABLE for part in ("--editable", path)))


def install(venv: Path, lock: str) -> None:
    """Create an environment with what a lock file names."""
    create_venv(venv)
    locked = ("--require-hashes", "--only-binary", ":all:", "-r", REQUIREMENTS / lock)
    if sys.stderr.isatty():
        show_installing(venv, *locked)
    else:
        pip(venv, *locked)


def show_installing(venv: Path, *arguments: str | Path) -> None:
    """Install, and show on a terminal how far it is."""
    lock = Path(arguments[-1])
    there_are = sum("==" in line and not line.startswith((" ", "#")) for line in lock.read_text().splitlines())
    command = [str(python_of(venv)), "-m", "pip", "--disable-pip-version-check", "install", *map(str, arguments)]
    fetched, last_lines = 0, []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        for line in running.stdout or ():
            last_lines = [*last_lines[-20:], line]
            if line.startswith("Collecting "):
                fetched += 1
                sys.stderr.write(f"\r\x1b[2Kinstalling into {venv.name}: {fetched} of {there_are}, {line.split()[1]}")
            elif line.startswith("Installing collected"):
                sys.stderr.write(f"\r\x1b[2Kinstalling into {venv.name}: unpacking {fetched} packages")
            sys.stderr.flush()
    sys.stderr.write("\r\x1b[2K")
    if running.returncode != 0:
        sys.exit(f"bootstrap: {' '.join(command)} failed:\n{''.join(last_lines)}")


def install_for_production(venv: Path) -> None:
    install(venv, "runtime.lock")
    with tempfile.TemporaryDirectory() as directory:
        build, wheels = Path(directory) / "build", Path(directory) / "wheels"
        install(build, "build.lock")
        run(python_of(build), "-m", "hatchling", "build", "-t", "wheel", "-d", wheels)
        pip(venv, "--no-deps", *wheels.glob("*.whl"))


def pip(venv: Path, *arguments: str | Path) -> None:
    run(python_of(venv), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *arguments)


if __name__ == "__main__":
    main()
