"""The imports of an exporter, which runs on each node (decision 0500)."""

import subprocess
import sys

#: Prints what is imported for reporting, and then for publishing besides.
_SCRIPT = """
import sys
import kai_exporter.main
print(*sorted(sys.modules))
import kai_exporter.publishing, kaicore.runtime.agent.api_server
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
}

#: What publishing a NodeResourceTopology takes besides, by the service account of the exporter's pod.
PUBLISHING = {"cython_runtime", "xxhash", "yaml"}

#: Large modules of Python's own that come in unseen.
TOO_LARGE = {"email", "html", "http.client", "http.server", "json", "multiprocessing", "sqlite3", "unittest", "xml"}

#: Smaller ones that it has only where it must: for flags, a supervisor, a misspelt word, a secret (decision 0500).
NOT_AT_FIRST = {"argparse", "ctypes", "difflib", "hmac", "random", "typing_extensions"}


def test_an_exporter_imports_few_libraries_and_no_service_skeleton() -> None:
    """A number of megabytes would be another on each machine; `make bench ARGS=exporter_node` measures it."""
    done = subprocess.run([sys.executable, "-I", "-c", _SCRIPT], capture_output=True, text=True, check=True)
    for printed, budget in zip(done.stdout.splitlines(), (BUDGET, BUDGET | PUBLISHING), strict=True):
        modules = set(printed.split())
        libraries = {name.partition(".")[0] for name in modules} - sys.stdlib_module_names
        assert {name for name in libraries if not name.startswith("_")} - budget <= {"sitecustomize", "usercustomize"}
        assert not (TOO_LARGE | NOT_AT_FIRST) & modules
        # The base structs of objects on the wire, and ingest's answer, are the only parts of the rules.
        modules -= {f"kaicore.rules{part}" for part in ("", ".objects", ".objects.reports", ".objects.wire")}
        others = ("kaicore.runtime.service", "kaicore.rules", "kaicore.kube.wire.podr")
        assert not {name for name in modules if name.startswith(others)}
