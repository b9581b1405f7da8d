"""Create `.venv` and install the locked dependencies and this project into it, tools of development included.

With a folder as its argument: create an environment there with what production needs and nothing else, the project as a
wheel. It needs neither a compiler nor this checkout afterwards.

Standard library only, because it runs before anything is installed. It installs from the hash-checked lock in
`requirements/`, so two machines get the same bytes, and it uses whatever index and certificates pip is configured with.
pip fetches uv, which installs the rest in a seventh of the time; where uv cannot, pip does it all.
"""

import ast
import hashlib
import os
import re
import ssl
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
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
#: What uv calls what pip is configured with, and what parts the values of a list for it.
UV_VARIABLES = {
    "cert": ("SSL_CERT_FILE", ""),
    "default-timeout": ("UV_HTTP_TIMEOUT", ""),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "index-url": ("UV_DEFAULT_INDEX", ""),
    "proxy": ("ALL_PROXY", ""),
    "retries": ("UV_HTTP_RETRIES", ""),
    "timeout": ("UV_HTTP_TIMEOUT", ""),
    "trusted-host": ("UV_INSECURE_HOST", " "),
}
#: What pip is configured with and no variable tells uv, or uv need not know.
PIPS_OWN = {
    "break-system-packages",
    "cache-dir",
    "disable-pip-version-check",
    "no-cache-dir",
    "no-color",
    "no-compile",
    "no-index",
    "no-input",
    "no-python-version-warning",
    "prefer-binary",
    "progress-bar",
    "quiet",
    "require-virtualenv",
    "root-user-action",
    "user",
    "verbose",
}
TRUE = {"1", "on", "t", "true", "y", "yes"}


def run(*command: str | Path) -> None:
    subprocess.run([str(part) for part in command], check=True, cwd=ROOT)


def create_venv(venv: Path) -> None:
    """Create an environment without pip, also where Debian has split `ensurepip` off."""
    made = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", "--without-pip", str(venv)],
        check=False,
        capture_output=True,
        text=True,
    )
    if made.returncode != 0:
        sys.exit(f"bootstrap: {sys.executable} can make no environment: {(made.stdout + made.stderr).strip()}")


def python_of(venv: Path) -> Path:
    return venv / "bin" / "python"


def pip_command(directory: Path) -> list[str]:
    """A pip that changes nothing but what it is pointed at: of this Python, of an environment, or fetched."""
    apart = directory / "pip"
    for python, prepared in (
        (sys.executable, ("-m", "pip", "--version")),
        (python_of(apart), ("-m", "venv", str(apart))),
    ):
        done = subprocess.run([sys.executable, *prepared], check=False, capture_output=True)
        if done.returncode == 0:
            return [str(python), "-m", "pip"]
    # Run as it is, from its wheel.
    return [sys.executable, str(fetched_pip(directory) / "pip")]


def fetched_pip(directory: Path) -> Path:
    """Fetch the wheel of pip into a folder."""
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
    wheel = directory / PIP_WHEEL
    wheel.write_bytes(content)
    return wheel


def main() -> None:
    if sys.version_info < MINIMUM:
        sys.exit(
            f"bootstrap: Python {'.'.join(map(str, MINIMUM))} or newer is needed, {sys.executable} is "
            f"{sys.version.split()[0]}; name another one: make PYTHON=/usr/bin/python3.12 ..."
        )
    # As root pip warns about root; and it may be told to stay in environments: it installs into ours only.
    os.environ.update(PIP_ROOT_USER_ACTION="ignore", PIP_REQUIRE_VIRTUALENV="0")
    with tempfile.TemporaryDirectory() as directory:
        if sys.argv[1:]:
            install_for_production(Path(sys.argv[1]).absolute(), Path(directory))
        else:
            create_venv(VENV)
            installer = Installer(Path(directory))
            installer.install(VENV, *locked("dev.lock"))
            ours = (part for path in EDITABLE for part in ("--editable", path))
            installer.install(VENV, "--no-deps", "--no-build-isolation", *ours)


def locked(lock: str) -> tuple[str | Path, ...]:
    """The arguments with which an installer installs exactly the contents of a lock file."""
    return ("--require-hashes", "--only-binary", ":all:", "-r", REQUIREMENTS / lock)


class Installer:
    """Installs into environments: uv, or pip where uv cannot be had or fails."""

    def __init__(self, directory: Path) -> None:
        """Args:
        directory: where uv, and a pip, may be put.
        """
        self._uv: list[str] = []
        self._pip = [*pip_command(directory), "--disable-pip-version-check"]
        configured = pip_configuration(self._pip)
        variables = uv_variables(configured)
        if variables is None:
            return
        wanted = directory / "uv.lock"
        wanted.write_text(uv_requirement((REQUIREMENTS / "dev.lock").read_text()))
        fetched = ("--require-hashes", "--only-binary", ":all:", "--target", directory / "uv", "-r", wanted)
        if self._tried(*self._pip, "install", "--quiet", *fetched):
            os.environ.update(variables)
            shown = [] if sys.stderr.isatty() else ["--quiet"]
            no_index = ["--no-index"] if configured.get("no-index", "0").lower() in TRUE else []
            # Like pip, it takes a package from any index that has it; the hash says whether it is the right one.
            strategy = ["--index-strategy", "unsafe-best-match"]
            self._uv = [str(directory / "uv/bin/uv"), "pip", "install", "--no-config", *shown, *no_index, *strategy]

    def install(self, venv: Path, *arguments: str | Path) -> None:
        """Raises CalledProcessError where pip fails too; it has said why."""
        python = str(python_of(venv))
        if not (self._uv and self._tried(*self._uv, "--python", python, *arguments)):
            run(*self._pip, "--python", python, "install", "--quiet", *arguments)

    def _tried(self, *command: str | Path) -> bool:
        try:
            run(*command)
        except (subprocess.CalledProcessError, OSError) as error:
            why = error.strerror if isinstance(error, OSError) else f"it ended with {error.returncode}, see above"
            sys.stderr.write(f"bootstrap: uv cannot be used ({why}); pip installs, which takes a minute or more\n")
            return False
        return True


def pip_configuration(pip: Sequence[str]) -> dict[str, str]:
    """The configuration of a pip for installing: by files, and by the environment, which wins."""
    asked = subprocess.run([*pip, "config", "list"], check=False, capture_output=True, text=True)
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in asked.stdout.splitlines():
        name, _, value = line.partition("=")
        section, _, option = name.rpartition(".")
        if section in sections:
            sections[section][option] = str(ast.literal_eval(value))
    return sections["global"] | sections["install"] | sections[":env:"]


def uv_variables(configured: Mapping[str, str]) -> dict[str, str] | None:
    """The settings of uv that follow from pip's; None where pip has an option that uv has not."""
    if set(configured) - set(UV_VARIABLES) - PIPS_OWN:
        return None
    return {
        variable: separator.join(configured[option].split()) if separator else configured[option]
        for option, (variable, separator) in UV_VARIABLES.items()
        if option in configured
    }


def uv_requirement(lock: str) -> str:
    """The lines of a lock file that are uv's."""
    return "".join(re.findall(r"^uv==(?:.*\\\n)*.*\n", lock, flags=re.MULTILINE))


def install_for_production(venv: Path, directory: Path) -> None:
    """Create an environment without the tools of development.

    Args:
        venv: the environment's folder.
        directory: for what is needed meanwhile.
    """
    create_venv(venv)
    build, wheels = directory / "build", directory / "wheels"
    create_venv(build)
    installer = Installer(directory)
    # Its folder may be read-only where it runs, so what is not compiled now would be compiled at each start.
    os.environ["UV_COMPILE_BYTECODE"] = "1"
    installer.install(venv, *locked("runtime.lock"))
    installer.install(build, *locked("build.lock"))
    run(python_of(build), "-m", "hatchling", "build", "-t", "wheel", "-d", wheels)
    installer.install(venv, "--no-deps", *wheels.glob("*.whl"))


if __name__ == "__main__":
    main()
