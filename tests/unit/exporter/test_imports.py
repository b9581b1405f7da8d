"""What an exporter imports, of which there is one on each node (decision 0500)."""

import subprocess
import sys

_SCRIPT = """
import sys
import kai_exporter.main
print(*sorted(sys.modules))
"""

#: Libraries beside Python's own.
BUDGET = {
    "grpclib",
    "h11",
    "h2",
    "hpack",
    "hyperframe",
    "kai_exporter",
    "kaicore",
    "msgspec",
    "multidict",
    "typing_extensions",
}

#: Large modules of Python's own that come in unseen.
TOO_LARGE = {"email", "html", "http.client", "http.server", "json", "multiprocessing", "sqlite3", "unittest", "xml"}


def test_an_exporter_imports_few_libraries_and_no_service_skeleton() -> None:
    """A number of megabytes would be another on each machine; `make bench ARGS=exporter_node` measures it."""
    done = subprocess.run([sys.executable, "-I", "-c", _SCRIPT], capture_output=True, text=True, check=True)
    modules = set(done.stdout.split())
    libraries = {name.partition(".")[0] for name in modules} - sys.stdlib_module_names
    assert {name for name in libraries if not name.startswith("_")} - BUDGET <= {"sitecustomize", "usercustomize"}
    assert not TOO_LARGE & modules
    assert not {
        name for name in modules if name.startswith(("kaicore.runtime.service", "kaicore.rules", "kaicore.kube.podr"))
    }
