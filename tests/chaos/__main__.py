"""`make chaos SEED=… MINUTES=…`: real processes, real faults, by a schedule that a seed gives."""

import argparse
import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.clocks import why_clocks_cannot_be_set
from tests.chaos.faults import KINDS, Kind, schedule
from tests.chaos.machines import why_no_machines
from tests.chaos.profile import PROFILE
from tests.chaos.run import run, write_summary
from tests.chaos.world import SERVERS, WorldOptions

#: Set in the process that has a mount namespace of its own.
_MOUNTS = "KAI_CHAOS_MOUNTS"

#: Size of a server's disk: enough for what it writes in an hour.
_DISK = {"postgres": "3g", "nats": "1g"}


def main() -> int:
    arguments = _arguments()
    kinds = {kind.name for kind in KINDS}
    for name in arguments.only:
        if name not in kinds:
            sys.stderr.write(f"no such kind of fault: {name}; there are {', '.join(sorted(kinds))}\n")
            return 2
    if os.geteuid() == 0 and shutil.which("unshare") and _MOUNTS not in os.environ:
        # Mounts that only we see, and that are gone with us.
        command = ["unshare", "--mount", "--propagation", "private", sys.executable, "-m", "tests.chaos", *sys.argv[1:]]
        if subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode == 0:
            os.execvpe(command[0], command, os.environ | {_MOUNTS: "1"})
    with tempfile.TemporaryDirectory(prefix="kai-chaos-", ignore_cleanup_errors=True) as scratch:
        try:
            return _run(arguments, Path(scratch))
        finally:
            if _MOUNTS in os.environ:
                for disk in [Path(scratch) / "try", *(Path(scratch) / "world" / server for server in SERVERS)]:
                    subprocess.run(["umount", "--lazy", str(disk)], check=False, capture_output=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the schedule and the load; by default a new one")
    parser.add_argument("--minutes", type=float, default=5.0, help="how long faults come")
    parser.add_argument("--scale", type=float, default=1.0, help="how often they come, as a multiple of the usual")
    parser.add_argument("--only", nargs="*", default=[], help="kinds of faults; by default all that can be had here")
    parser.add_argument("--replicas", action="store_true", help="both schedulers decide, sharing groups (two shards)")
    parser.add_argument("--summary", type=Path, help="file for the summary as JSON")
    parser.add_argument(
        "--keep",
        type=Path,
        help="folder for the recording and the logs; by default kept when something is wrong or unexplained",
    )
    parser.add_argument("--schedule", action="store_true", help="print the schedule and do nothing")
    arguments = parser.parse_args()
    arguments.seed = arguments.seed or random.SystemRandom().randrange(1, 1_000_000)
    return arguments


def _run(arguments: argparse.Namespace, scratch: Path) -> int:
    seconds = arguments.minutes * 60
    clocks, machines = why_clocks_cannot_be_set(scratch), why_no_machines()
    lacking = {"disks": _why_no_disks(scratch), "clocks": clocks, "machines": machines}
    kinds = [kind for kind in KINDS if not arguments.only or kind.name in arguments.only]
    skipped = {kind.name: lacking[kind.needs] for kind in kinds if lacking.get(kind.needs)}
    for name, why in skipped.items():
        _tell(f"skipped: {name}: {why}")
    kinds = [kind for kind in kinds if kind.name not in skipped]
    steps = schedule(arguments.seed, seconds, tuple(kinds), scale=arguments.scale)
    _tell(f"make chaos SEED={arguments.seed} MINUTES={arguments.minutes:g}: {len(steps)} faults")
    if arguments.schedule:
        for step in steps:
            _tell(str(step))
        return 0
    root = _prepared(scratch, disks=not lacking["disks"])
    options = WorldOptions(
        profile=root / "profile.yaml",
        readers=True,
        replicas=arguments.replicas,
        clocks=not lacking["clocks"],
        machines=not lacking["machines"],
        shares=True,
    )
    options.profile.write_text(PROFILE)
    started = time.time()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        outcome = asyncio.run(
            run(
                root,
                options,
                seed=arguments.seed,
                seconds=seconds,
                steps=steps,
                kinds=kinds,
                pause=(0.3, 1.2),
                tell=_tell,
            )
        )
    except BaseException:
        _keep(arguments, root)
        raise
    summary = outcome.summary(
        seed=arguments.seed,
        minutes=arguments.minutes,
        scale=arguments.scale,
        replicas=arguments.replicas,
        tookSeconds=round(time.time() - started),
        skipped=skipped,
    )
    _print(summary, kinds)
    if arguments.summary:
        write_summary(arguments.summary, summary)
    if outcome.wrong or arguments.keep or outcome.stories:
        (root / "logs/rejections.txt").write_text("\n".join([*outcome.rejections, *outcome.stories, ""]))
        _keep(arguments, root)
    return 1 if outcome.wrong else 0


def _why_no_disks(scratch: Path) -> str:
    if os.geteuid() != 0 or _MOUNTS not in os.environ:
        return "mounting a small disk takes root and a mount namespace (unshare --mount)"
    try:
        _mount(scratch / "try", "1m")
    except subprocess.CalledProcessError as error:
        return f"a small disk cannot be mounted: {error.stderr.strip()}"
    return ""


def _mount(directory: Path, size: str) -> None:
    directory.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs", str(directory)]
    subprocess.run(command, check=True, capture_output=True, text=True)


def _prepared(scratch: Path, *, disks: bool) -> Path:
    scratch.chmod(0o755)
    root = scratch / "world"
    root.mkdir()
    if disks:
        for server in SERVERS:
            _mount(root / server, _DISK[server])
    return root


def _print(summary: dict[str, object], kinds: list[Kind]) -> None:
    struck = summary["faultsByKind"]
    assert isinstance(struck, dict)
    for kind in kinds:
        _tell(f"{struck.get(kind.name, 0):7}  {kind.name:<18} {kind.text}")
    _tell(f"{summary['faults']:7}  faults in all, seed {summary['seed']}, {summary['tookSeconds']} s")
    _tell(f"work: {summary['figures']}")
    _tell(f"not as predicted: {summary['misses']}")
    _tell(f"checked from outside: {summary['checker']}")
    rejections, wrong = summary["rejections"], summary["wrong"]
    assert isinstance(rejections, list)
    for line in rejections:
        _tell(f"rejected by a kubelet: {line}")
    assert isinstance(wrong, list)
    for line in wrong:
        _tell(f"WRONG  {line}")
    if not wrong:
        _tell("0 acknowledged events lost, 0 zones over-committed, 0 double binds, replay equal, all work ended")


def _keep(arguments: argparse.Namespace, root: Path) -> None:
    kept = arguments.keep or Path(tempfile.gettempdir()) / f"kai-chaos-seed-{arguments.seed}"
    kept.mkdir(parents=True, exist_ok=True)
    for name in ("recording", "logs"):
        if (root / name).exists():
            shutil.copytree(root / name, kept / name, dirs_exist_ok=True)
    for file in (root / "postgres/postgres.log", root / "nats/nats.log"):
        if file.exists():
            shutil.copy(file, kept / "logs")
    _tell(f"kept: {kept}")


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
