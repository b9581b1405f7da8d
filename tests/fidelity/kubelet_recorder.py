"""Record what the resource managers of one kubelet version decide: `python -m tests.fidelity.kubelet_recorder v1.37.2`.

`tools/kubelet_recorder` is linked with that version's own `pkg/kubelet/cm`, by the Go module proxy, and asked about the
scenarios of `version_scenarios`. It takes Go, some five minutes of CPU for the first build, and root, for the device
manager's folder is in a mount namespace of its own. What was recorded is below `recorded/`, by version.
"""

import argparse
import gzip
import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec

from tests.fidelity.resize_scenarios import resize_scenarios
from tests.fidelity.vectors import Record
from tests.fidelity.version_scenarios import scenario

SOURCE = Path(__file__).parents[2] / "tools/kubelet_recorder/main.go"
RECORDED = Path(__file__).parent / "recorded"

#: Kubernetes' staged modules that the managers are compiled with; the others only stand in go.mod.
_STAGED = frozenset(
    (
        "api",
        "apiextensions-apiserver",
        "apimachinery",
        "apiserver",
        "client-go",
        "cloud-provider",
        "component-base",
        "component-helpers",
        "controller-manager",
        "cri-api",
        "cri-client",
        "csi-translation-lib",
        "dynamic-resource-allocation",
        "kms",
        "kube-scheduler",
        "kubelet",
        "mount-utils",
        "streaming",
    )
)

#: Staged modules that the proxy lacks at a patch version, and the patch version of the same minor that stands in.
_STAND_INS = {
    "v1.26.15": {"controller-manager": "v0.26.13"},
    "v1.27.16": {
        "cloud-provider": "v0.27.12",
        "controller-manager": "v0.27.11",
        "csi-translation-lib": "v0.27.8",
        "dynamic-resource-allocation": "v0.27.8",
        "mount-utils": "v0.27.15",
    },
    "v1.31.14": dict.fromkeys(
        ("cri-client", "csi-translation-lib", "dynamic-resource-allocation", "kube-scheduler"), "v0.31.4"
    ),
    "v1.32.13": dict.fromkeys(("cri-client", "csi-translation-lib", "kube-scheduler"), "v0.32.10"),
}

#: The first minor with managers that use `k8s.io/utils/cpuset`; before, the package is the kubelet's own.
_FIRST_WITH_CPU_SETS_OF_UTILS = 28

#: The first minor that resizes pods by default. What 1.32 has in a pod's status hangs on further gates, so
#: the recorder would ask its managers what no kubelet asks them.
FIRST_RESIZED_MINOR = 33

#: The managers' own packages are compiled fast rather than well: a build takes most of a recording's time.
_BUILD = [
    "go",
    "build",
    "-mod=mod",
    "-p",
    "2",
    "-gcflags=all=-N -l -dwarf=false",
    "-ldflags=-s -w",
    "-o",
    "recorder",
    ".",
]

#: One process a scenario: feature gates are a process's, and a device manager does not stop.
_RUN = """
mkdir -p /var/lib/kubelet && mount -t tmpfs none /var/lib/kubelet || exit 1
while IFS= read -r line; do printf '%s\\n' "$line" | "$0" || exit 1; done
"""


def built(version: str) -> Path:
    """Return the recorder of a version, building it if need be.

    Raises:
        subprocess.CalledProcessError: the version is not to be had, or it does not fit the recorder.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kai-ledger"
    folder = cache / f"kubelet-recorder-{version}"
    folder.mkdir(parents=True, exist_ok=True)
    source = SOURCE.read_text()
    if int(version.split(".")[1]) < _FIRST_WITH_CPU_SETS_OF_UTILS:
        source = source.replace('"k8s.io/utils/cpuset"', '"k8s.io/kubernetes/pkg/kubelet/cm/cpuset"')
    (folder / "main.go").write_text(source)
    module = f"k8s.io/kubernetes@{version}"
    answer = subprocess.run(["go", "mod", "download", "-json", module], cwd=cache, check=True, capture_output=True)
    _write_modules(folder, version, Path(msgspec.json.decode(answer.stdout)["GoMod"]).read_text())
    subprocess.run(_BUILD, cwd=folder, check=True)
    return folder / "recorder"


def _write_modules(folder: Path, version: str, kubernetes: str) -> None:
    """Write go.mod: a staged module is `v0.0.0` in Kubernetes' own, which replaces it by a folder of its repository."""
    staged_version = f"v0.{version.partition('.')[2]}"
    stand_ins = _STAND_INS.get(version, {})
    staged = re.findall(r"^\s*(?:require )?k8s\.io/([a-z-]+) v0\.0\.0$", kubernetes, re.MULTILINE)
    lines = ["module kubelet-recorder", "", "go 1.26.0", "", f"require k8s.io/kubernetes {version}"]
    for name in staged:
        if name in _STAGED:
            lines.append(f"replace k8s.io/{name} => k8s.io/{name} {stand_ins.get(name, staged_version)}")
            continue
        empty = folder / "not-compiled" / name
        empty.mkdir(parents=True, exist_ok=True)
        (empty / "go.mod").write_text(f"module k8s.io/{name}\n")
        lines.append(f"replace k8s.io/{name} => ./not-compiled/{name}")
    (folder / "go.mod").write_text("\n".join([*lines, ""]))


def record(version: str, count: int) -> list[Record]:
    """Return scenarios with what a version decides on them; those that it cannot be asked are left out."""
    minor = int(version.split(".")[1])
    answers = _answers(version, [scenario(seed, minor) for seed in range(count)])
    return [_tidied(one, version) for one in answers if "unsupported" not in one]


def write_resizes(version: str) -> Path:
    """Record what a version does of pods with exclusive CPUs that are resized in place; return the file."""
    answers = _answers(version, resize_scenarios())
    path = RECORDED / f"resizes-{version}.jsonl"
    path.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in answers))
    return path


def _answers(version: str, scenarios: list[Record]) -> list[Record]:
    lines = b"".join(msgspec.json.encode(one) + b"\n" for one in scenarios)
    command = ["unshare", "--mount", "bash", "-c", _RUN, str(built(version))]
    done = subprocess.run(command, input=lines, capture_output=True, check=False)
    if done.returncode:
        sys.exit(f"kubelet_recorder: {version}: {done.stderr.decode(errors='replace')[-2000:].strip()}")
    return [msgspec.json.decode(line) for line in done.stdout.splitlines()]


def _tidied(answer: Record, version: str) -> Record:
    """Leave out what happens to pods that were refused, and what containers show of what is their pod's as a whole."""
    refused = {event["pod"] for event in answer["events"] if event["op"] == "admit" and not event["admit"]}
    events = []
    for event in answer["events"]:
        if event["op"] != "admit":
            if event["pod"] not in refused:
                events.append({"op": event["op"], "pod": event["pod"]})
            continue
        allocations = event.get("alloc", [])
        if allocations and not allocations[-1]["name"]:
            allocations[-1]["affinity"] = allocations[0]["affinity"]
            for item in allocations[:-1]:
                item.pop("memory", None)
                item.get("amounts", {}).pop("cpu", None)
        events.append(event)
    return {**answer, "node": {**answer["node"], "kubelet": version}, "events": events}


def write(version: str, scenarios: list[Record]) -> Path:
    """Keep a recording; return the file."""
    path = RECORDED / f"kubelet-{version}.jsonl.gz"
    RECORDED.mkdir(exist_ok=True)
    with path.open("wb") as target, gzip.GzipFile(fileobj=target, mode="wb", mtime=0, filename="") as packed:
        packed.write(b"".join(msgspec.json.encode(one) + b"\n" for one in scenarios))
    return path


def _version(text: str) -> str:
    if not re.fullmatch(r"v1\.\d+\.\d+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no version of Kubernetes, such as v1.37.2")
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="+", type=_version, help="such as v1.37.2")
    parser.add_argument("--count", type=int, default=200, help="how many scenarios")
    parser.add_argument(
        "--resizes", action="store_true", help="resizes in place instead, which few versions tell apart"
    )
    arguments = parser.parse_args()
    early = [one for one in arguments.versions if arguments.resizes and int(one.split(".")[1]) < FIRST_RESIZED_MINOR]
    if early:
        parser.error(f"--resizes: {', '.join(early)}: resizes in place are on by default since 1.33 (decision 0452)")
    for version in arguments.versions:
        if arguments.resizes:
            print(write_resizes(version))
            continue
        scenarios = record(version, arguments.count)
        print(f"{write(version, scenarios)}: {len(scenarios)} scenarios")
    return 0


if __name__ == "__main__":
    sys.exit(main())
