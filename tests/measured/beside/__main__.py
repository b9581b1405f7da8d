"""`make beside`: the same work under the real kube-scheduler, under ours, and under both; figures as JSON lines.

The API server is Kubernetes' own, or the simulated one (`--simulated`); the kubelets are the simulated fleet. At last
the guides are followed there (`tests/e2e/test_adopting.py`), and where the scheduler that a guide is about runs itself
(`tests/e2e/test_guide_of_kai.py`), and Kueue itself admits what we place
(`tests/e2e/test_under_kueue.py`, `tests/e2e/test_checks_of_kueue.py`), and Helm itself installs, upgrades, rolls back
and uninstalls the chart (`tests/e2e/test_helm.py`), and nodes are reserved, drained and found to be black holes
(`tests/e2e/test_set_aside.py`), and what the gate tries end to end on the simulated API server is
tried on the real one.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import msgspec

from tests.measured.beside.arms import ARMS, run_arm
from tests.measured.beside.control_plane import control_plane
from tests.measured.beside.kueue import kueue
from tests.measured.beside.programs import KAI, KOORDINATOR, VOLCANO, program, sources

_GUIDES, _KUEUE, _HELM, _PLANS, _END_TO_END = "guides", "kueue", "helm", "plans", "end-to-end"
#: Tests of the gate, which runs them on the simulated API server.
OF_THE_GATE = tuple(
    f"tests/e2e/test_{name}.py"
    for name in (
        *("stack", "rights", "chart", "operator", "devices", "gpu_shares", "repair", "autoscaling"),
        "topology_of_a_fleet",
    )
)
#: Kubernetes' own PodGroups, and claims that are made for them.
_GATES = "GenericWorkload=true,DRAWorkloadResourceClaims=true"
#: Guides followed where the scheduler that they are about runs itself.
_GUIDE_OF = {"guide-kai": KAI, "guide-volcano": VOLCANO, "guide-koordinator": KOORDINATOR}
#: What the simulated API server cannot do for them.
_REAL = {
    _KUEUE: "its definitions need an API server that converts by webhooks",
    **dict.fromkeys((_PLANS, _END_TO_END), "that is what `make test` does"),
    _HELM: "its Jobs, Deployments and DaemonSets need Kubernetes' own controllers",
    **dict.fromkeys(_GUIDE_OF, "the other scheduler's own controllers need Kubernetes' own API server"),
}


def main() -> int:
    """Run what is asked for; 1 if something is wrong."""
    names = [*(arm.value for arm in ARMS), _GUIDES, *_GUIDE_OF, _KUEUE, _HELM, _PLANS, _END_TO_END]
    parser = argparse.ArgumentParser(prog="make beside", description=__doc__)
    parser.add_argument("--simulated", action="store_true", help="on the simulated API server")
    parser.add_argument("--only", nargs="*", choices=names, default=names, help="by default all")
    parser.add_argument("--jobs", type=int, default=150, help="how many Jobs come")
    parser.add_argument("--every", type=float, default=1.1, help="seconds from one to the next, the mean")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="folder for logs and reports; by default they are gone")
    asked = parser.parse_args()
    if asked.simulated:
        for name in _REAL.keys() & set(asked.only):
            sys.stderr.write(f"skipped: {name}: {_REAL[name]}\n")
        asked.only = [name for name in asked.only if name not in _REAL]
    with tempfile.TemporaryDirectory(prefix="kai-beside-", ignore_cleanup_errors=True) as scratch:
        # Postgres runs as nobody where the tests are root's.
        Path(scratch).chmod(0o755)
        try:
            wrong = [name for name in asked.only if _is_wrong(name, asked, asked.keep or Path(scratch))]
        except FileNotFoundError as error:
            sys.stderr.write(f"skipped: {error}\n")
            return 0
    return 1 if wrong else 0


def _is_wrong(name: str, asked: argparse.Namespace, root: Path) -> bool:
    place = root / name
    place.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        if not asked.simulated:
            kubeconfig = stack.enter_context(control_plane(place / "kubernetes", gates=_GATES * (name == _END_TO_END)))
            os.environ["KAI_TEST_KUBECONFIG"] = str(kubeconfig)
            stack.callback(os.environ.pop, "KAI_TEST_KUBECONFIG")
        if name == _GUIDES:
            return _fails("KAI_TEST_LONG", "tests/e2e/test_adopting.py")
        if name in _GUIDE_OF:
            # Here, so that a machine without them skips these: the tests take both for granted.
            sources(_GUIDE_OF[name])
            for one in _GUIDE_OF[name].programs:
                program(one)
            guide = name.removeprefix("guide-")
            return _fails("KAI_TEST_GUIDE", f"tests/e2e/test_guide_of_{guide}.py", value=guide)
        if name == _HELM:
            if "KAI_TEST_HELM" not in os.environ:
                os.environ["KAI_TEST_HELM"] = str(program("helm"))
            return _fails("KAI_TEST_LONG", "tests/e2e/test_helm.py")
        if name == _PLANS:
            return _fails("KAI_TEST_LONG", "tests/e2e/test_set_aside.py")
        if name == _END_TO_END:
            return _fails("KAI_TEST_LONG", *OF_THE_GATE)
        if name == _KUEUE:
            stack.enter_context(kueue(Path(os.environ["KAI_TEST_KUBECONFIG"]), place / "kueue"))
            return _fails("KAI_TEST_KUEUE", "tests/e2e/test_under_kueue.py", "tests/e2e/test_checks_of_kueue.py")
        (arm,) = [one for one in ARMS if one.value == name]
        result = run_arm(arm, place, jobs=asked.jobs, every_s=asked.every, seed=asked.seed)
    print(msgspec.json.encode(result).decode(), flush=True)
    return bool(result.wrong)


def _fails(asked_for_by: str, *tests: str, value: str = "1") -> bool:
    command = [sys.executable, "-m", "pytest", "--quiet", *tests]
    with subprocess.Popen(command, env={**os.environ, asked_for_by: value}) as process:
        try:
            return process.wait() != 0
        except BaseException:
            # As Ctrl-C does, so that it ends what it has started.
            process.send_signal(signal.SIGINT)
            raise


if __name__ == "__main__":
    os.environ.pop("KAI_TEST_KUBECONFIG", None)
    # So that the programs which run here end with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
