"""Create `.venv` and install the locked dependencies and this project into it.

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
LOCK = ROOT / "requirements" / "dev.lock"
PYTHON = VENV / "bin" / "python"
MINIMUM = (3, 11)
#: The pip that is fetched where Python brings none, as on a bare Debian.
PIP_WHEEL = "pip-25.3-py3-none-any.whl"
PIP_SHA256 = "9655943313a94722b7774661c21049070f6bbb0a1516bf02f7c8d5d9201514cd"


def run(*command: str | Path) -> None:
    subprocess.run([str(part) for part in command], check=True, cwd=ROOT)


def create_venv() -> None:
    """Create the environment with pip in it, also where Debian has split `ensurepip` off."""
    made = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", str(VENV)], check=False, capture_output=True, text=True
    )
    if made.returncode == 0:
        return
    virtualenv = subprocess.run(
        [sys.executable, "-m", "virtualenv", "--clear", str(VENV)],
        check=False,
        capture_output=True,
        text=True,
    )
    if virtualenv.returncode == 0:
        return
    bare = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", "--without-pip", str(VENV)],
        check=False,
        capture_output=True,
        text=True,
    )
    if bare.returncode != 0:
        sys.exit(f"bootstrap: {sys.executable} can make no environment: {(bare.stdout + bare.stderr).strip()}")
    system_pip = subprocess.run([sys.executable, "-m", "pip", "--version"], check=False, capture_output=True)
    if system_pip.returncode == 0:
        run(sys.executable, "-m", "pip", "--python", PYTHON, "install", "--quiet", "pip")
    else:
        install_fetched_pip()


def install_fetched_pip() -> None:
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
        run(PYTHON, wheel / "pip", "install", "--quiet", "--no-index", "--no-deps", wheel)


def install(*pip: str | Path) -> None:
    """Install what is locked, and show how far it is where that is a terminal."""
    if not sys.stderr.isatty():
        run(*pip, "--quiet")
        return
    locked = sum("==" in line and not line.startswith((" ", "#")) for line in LOCK.read_text().splitlines())
    command = [str(part) for part in pip]
    fetched, said = 0, []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        for line in running.stdout or ():
            said = [*said[-20:], line]
            if line.startswith("Collecting "):
                fetched += 1
                sys.stderr.write(f"\r\x1b[2Kinstalling into .venv: {fetched} of {locked}, {line.split()[1]}")
            elif line.startswith("Installing collected"):
                sys.stderr.write(f"\r\x1b[2Kinstalling into .venv: unpacking {fetched} packages")
            sys.stderr.flush()
    sys.stderr.write("\r\x1b[2K")
    if running.returncode != 0:
        sys.exit(f"bootstrap: {' '.join(command)} failed:\n{''.join(said)}")


def main() -> None:
    if sys.version_info < MINIMUM:
        sys.exit(
            f"bootstrap: Python {'.'.join(map(str, MINIMUM))} or newer is needed, {sys.executable} is "
            f"{sys.version.split()[0]}; name another one: make PYTHON=/usr/bin/python3.12 ..."
        )
    create_venv()
    pip = [PYTHON, "-m", "pip", "--disable-pip-version-check", "install"]
    # As root pip warns about root; in an environment of our own that is noise.
    os.environ["PIP_ROOT_USER_ACTION"] = "ignore"
    install(*pip, "--require-hashes", "--only-binary", ":all:", "-r", LOCK)
    run(*pip, "--quiet", "--no-deps", "--no-build-isolation", "--editable", ".")


if __name__ == "__main__":
    main()
