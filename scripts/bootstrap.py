"""Create `.venv` and install the locked dependencies and this project into it.

Standard library only, because it runs before anything is installed. It installs from the hash-checked lock in
`requirements/`, so two machines get the same bytes, and it uses whatever index and certificates pip is configured with.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
LOCK = ROOT / "requirements" / "dev.lock"
PYTHON = VENV / "bin" / "python"
MINIMUM = (3, 11)


def run(*command: str | Path) -> None:
    subprocess.run([str(part) for part in command], check=True, cwd=ROOT)


def create_venv() -> None:
    """Create the environment; fall back to `virtualenv` where Debian has split `ensurepip` off."""
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
    )
    system_pip = subprocess.run([sys.executable, "-m", "pip", "--version"], check=False, capture_output=True)
    if bare.returncode == 0 and system_pip.returncode == 0:
        run(sys.executable, "-m", "pip", "--python", PYTHON, "install", "--quiet", "pip")
        return
    sys.exit(
        "bootstrap: this Python can make no environment with pip: install Debian's python3-venv (or python3-pip)\n"
        + (made.stdout + made.stderr).strip()
    )


def main() -> None:
    if sys.version_info < MINIMUM:
        sys.exit(
            f"bootstrap: Python {'.'.join(map(str, MINIMUM))} or newer is needed, {sys.executable} is "
            f"{sys.version.split()[0]}; name another one: make PYTHON=/usr/bin/python3.12 ..."
        )
    create_venv()
    pip = [PYTHON, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    # As root pip warns about root; in an environment of our own that is noise.
    os.environ["PIP_ROOT_USER_ACTION"] = "ignore"
    run(*pip, "--require-hashes", "--only-binary", ":all:", "-r", LOCK)
    run(*pip, "--no-deps", "--no-build-isolation", "--editable", ".")


if __name__ == "__main__":
    main()
