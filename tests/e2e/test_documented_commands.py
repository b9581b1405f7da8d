"""Every command of ours that a document, the chart or a program shows, run as it is printed, on one demonstration.

Lines of code blocks are pasted into a shell as a whole, pipes and all; what stands in a sentence is run as it stands.
A mention of a command without what it needs (`kai why`) is none. `tests/unit/cli/test_documented_commands.py` holds all
of them, and each choice that they offer, against the command line.
"""

import functools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cyclopts import MissingArgumentError
from kai_cli.main import app, spelled_out
from kai_cli.sources.paths import DataDirectory
from kaicore.runtime.embedded import embedded_url_of

from tests.e2e.live_stack import PATIENCE_S
from tests.given.processes.kai_commands import kai, put_on_path, talking
from tests.given.servers.servers import scratch_directory
from tests.unit.cli.test_documented_commands import (
    PAGES,
    ROOT,
    fenced_lines,
    hinted,
    inline,
    printed,
    shown_elsewhere,
    variants,
)

pytestmark = pytest.mark.slow

_LINE = re.compile(r"^\s*(?:\$ )?((?:\.venv/bin/)?kai(?:-[a-z]+)? .*|openssl .*|kubectl .*\| kai .*)$")
_INLINE = re.compile(r"`(?:\$ )?(kai (?!-)[^`]*|kai --[^`]*)`")

#: A line that means the same without a shell.
_PLAIN = re.compile(r"[-\w./:=,+ ]*")

#: What stands for something in a line, and what it is here; the first that fits.
MEANINGS = (
    # What reaches a hub elsewhere; the demonstration's is in its data directory.
    (r" …$", ""),
    (r"http://127\.0\.0\.1:8080", "$DEMONSTRATION_API"),
    (r"postgresql://…|\$RESTORED_URL|\$OWNER_URL", "$OWNERS_URL"),
    (r"research/(train|prep)-0", "default/never-fits"),
    (r"(?<=policy try )FILE", "spot_last.py"),
    (r"^kai simulate -$", "kai dump --cluster demo | kai simulate -"),
    # One file is submitted in several ways.
    (r"(?<=--cluster )east,west", "demo,demo-2 --name apart"),
    (r"(?<=--data )images$", "images --name near"),
    (r"(?<=--shadow )SCHEDULER", "kai-scheduler"),
    (r"(?<=--make --kubeconfig )FILE", ".kai/clusters/demo/kubeconfig"),
    (r"(?<=--nodes )NODE", "gpu-3"),
    (r"(?<=reserve )NAME", "night"),
    (r"(?<=--kubeconfig )FILE|(?<=watcher=)FILE|(?<=binder=)FILE", ".kai/http-kubeconfig"),
    (r"(?<=seal )FILE|(?<=--against )FILE", "sealed"),
    (r"(?<=--data-dir )DIR|(?<=--podresources-dir )DIR", "fleet-data"),
    (r"NAME\|FILE", "mini"),
    (r"NODES\.csv", "nodes.csv"),
    (r"PODS\.csv", "pods.csv"),
    (r"JOBS\.csv", "jobs.csv"),
    (r"FILES…", "examples"),
    (r"red\.yaml", "settings.yaml"),
    (r"(?<=drain )east|(?<=resume )east", "demo-2"),
    (r"(?<=cluster use )east", "demo"),
    (r"(?<=submit )(FILE…|train\.yaml|team\.yaml…)", "submitted.yaml"),
    (r"(?<=report-bug )FILE", "bug.log.gz"),
    (r"(?<=export )FILE|(?<=import log )FILE|(?<=--file )FILE", "prod.log.gz"),
    (r"(?<=--html )FILE", "report.html"),
    # They decide anew all that was decided since.
    (r"(?<=report )--month 2026-11 --by team --prices prices\.csv", "--by team --prices prices.csv"),
    (r"(?<=report )--from -7d", "--from -1h"),
    (r"(?<=what-if policies )--from -168h", "--from 1 --to 200"),
    (r"(?<=what-if history )--from -10m", "--from 1 --to 200"),
    (r"--from A --to B", "--from 1 --to 200"),
    (r"MOMENT MOMENT", "100 200"),
    (r"who QUEUE", "who default/never-fits"),
    (r"02:50Z 02:55Z", "100 200"),
    (r"(?:MOMENT|POSITION)\b", "200"),
    (r"\bREASON\b", "forged"),
    (r"--at -2h", "--at -1s"),
    (r"-1m end", "-1s end"),
    (r"(?<=--profile )FILE", "demo24"),
    (r"\bFILE\b", "team.yaml"),
    (r"\bDIR\b", "trace"),
    (r"NAMESPACE/NAME", "default/never-fits"),
    (r"KIND/NAME", "job/full-node"),
    (r"(?<=pod/)NAME", "never-fits"),
    (r"NODE --gpu GPU", "gpu-3 --gpu 0"),
    (r"(?<=node/)NAME", "gpu-3"),
    (r"NAMESPACE\b", "default"),
    (r"SERVICE\b", "relay"),
    (r"PROFILE\b", "demo24"),
    (r"\bMONTH\b", "2026-01"),
    (r"(?<= )N\b", "2"),
)

#: Commands that go on until they are interrupted, and what they say when they are ready.
GOES_ON = {"kai up": "Ctrl-C stops it", "kai fleet": "all nodes have joined", "kai-fleet": "all nodes have joined",
           "kai-apiserver": "API server listening"}  # fmt: skip

#: The month is not in the log of a demonstration; `tests/integration/test_retire.py` retires one. Nor is there a
#: webhook's Secret (`tests/integration/test_webhook.py`).
#: What would take the demonstration apart, or needs another server, and the tests that run it.
RUN_ELSEWHERE = {
    "kai cluster add east": ("tests/integration/test_several_clusters.py", "cluster_commands.cluster_add("),
    "kai cluster remove east": ("tests/integration/test_several_clusters.py", "cluster_commands.cluster_remove("),
    "kai agent west": ("tests/chaos/test_agent_dials_out.py", '"kai", "agent", "west"'),
    "kai topology generate --labels cloud.provider.com/": ("tests/unit/cli/test_topology_generate.py", "generate("),
}

REFUSED: dict[str, tuple[int, ...]] = {
    "kai retire": (2,),
    # No month of a demonstration is over.
    "kai report seal": (2,),
    "kai report verify": (2,),
    "kai webhook certificates --previous": (2,),
    # A kubelet may have rejected a pod, and no pod of a demonstration is gone for certain.
    "kai audit placements": (0, 1),
    "kai erase": (1, 2),
    # Every event of a demonstration can be decoded.
    "kai audit set-aside": (1, 2),
    # A demonstration has no shadow (`tests/e2e/test_shadow.py`).
    "kai shadow report": (1,),
    # Its pod runs for a second, and what has ended is not withdrawn.
    "kai withdraw": (0, 2),
}

#: What goes on until it is interrupted, and says at once what there is.
FOLLOWING = " --follow"

#: What says what it lacks only when it runs.
NEEDING_MORE = (
    "kai submit",
    "kai simulate",
    "kai simulate --kubelet",
    "kai migrate",
    "kai what-if submit",
    "kai what-if submit -o json",
    "kai load",
    "kai topology generate",
)

#: It is what all others are run on.
THE_DEMONSTRATION = "kai demo"

POD = """
apiVersion: v1
kind: Pod
metadata: {name: NAME, annotations: {simulator.kai.scheduler/run-seconds: "1"}}
spec: {containers: [{name: main, image: x, resources: {limits: {cpu: 1, memory: 1Gi}}}]}
"""
NODES_CSV = "sn,cpu_milli,memory_mib,gpu,model\nn1,96000,393216,8,G2\n"
#: A job in the words of each trace.
JOBS_CSV = """\
timestamp,duration,num_gpus,cluster,instance_sn,cpu_request,memory_request,creation_time,deletion_time,gpus,seconds
2017-10-09 07:01:55,66.0,1,11cb48,instance_0,12,120.0,475.0,683.0,1,60
"""
PODS_CSV = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
    "p1,4000,8192,1,1000,,LS,Succeeded,100,700,110\n"
)


@functools.cache
def shown() -> tuple[tuple[str, str], ...]:
    """The place of each command line, and the line; those of code blocks whole."""
    return tuple(_shown())


def _shown() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for where, line in fenced_lines(page):
            if match := _LINE.match(line):
                yield where, re.split(r"\s+#", match[1])[0].strip()
        yield from inline(page, _INLINE)
    for where, command in (*shown_elsewhere(), *printed(), *hinted()):
        yield where, f"kai {command}"


def meant(line: str) -> Iterator[str]:
    """A line with things instead of words for them: with nothing and with everything that it offers."""
    for pattern, thing in MEANINGS:
        line = re.sub(pattern, thing, line)
    for offered in dict.fromkeys((re.sub(r" \[[^\]]*\]", "", line), re.sub(r"[\[\]]", "", line))):
        # The first of several choices: the command line's own tests have them all.
        choices = next((word for word in offered.split() if re.fullmatch(r"[a-z]+(\|[a-z]+)+", word)), "")
        yield offered.replace(choices, choices.partition("|")[0])


@functools.cache
def is_mention(line: str) -> bool:
    """True if the line names something that cannot be run like this."""
    words = spelled_out(next(variants(re.split(r" [>|] ", line)[0].removeprefix("kai "))))
    if not line.startswith("kai ") or words[0] in ("fleet", "--help", "--version"):
        return line in ("kai fleet",)
    if line in NEEDING_MORE or line.startswith(tuple(RUN_ELSEWHERE)):
        return True
    try:
        command, _, _ = app.parse_args(words, exit_on_error=False, print_error=False)
    except MissingArgumentError:
        return True
    return command.__name__ == "help_print"


@functools.cache
def commands() -> list[tuple[str, str]]:
    """The lines to run, each with where it stands: found when a test asks, so that collecting costs nothing."""
    # A line is run once, with the path of a checkout's `kai` or without.
    lines: dict[str, tuple[str, str]] = {}
    for where, line in shown():
        for one in meant(line):
            lines.setdefault(one.removeprefix(".venv/bin/"), (where, one))
    return [(where, one) for where, one in lines.values() if not is_mention(one)]


def _words(line: str) -> set[str]:
    """The words of a line without moments and profiles, and the first cluster's name: one is as good as another."""
    line = line.replace("kai fleet", "kai-fleet").removeprefix(".venv/bin/")
    line = re.sub(r"--from (-\d+[mhd]|1 --to 200)", "--from MOMENT", line)
    profiles = " --profile [^/ ]+" if line.startswith(("kai up", "kai-fleet")) else " --cluster demo"
    return set(re.sub(rf"{profiles}(?= |$)", "", line).split())


def _told_apart(commands: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The commands without those of which another has all words.

    A right command stays one with fewer flags: `tests/unit/cli/test_documented_commands.py` holds each against the
    command line, and the tests of its answers run it without any.
    """
    words = [_words(line) for _, line in commands]
    return [
        one
        for number, (one, its) in enumerate(zip(commands, words, strict=True))
        if its not in words[:number] and not any(its < others for others in words)
    ]


#: They ask no server: `tests/unit/cli/test_commands.py` runs each of them.
ASKS_NOTHING = ("kai completion",)
#: Each command of it is run by `test_tutorial_of_policies.py`.
TUTORIAL = "docs/how-to/write-a-policy.md:"
#: They decide anew all that was decided since, so they come first: work keeps coming as long as commands are run.
DECIDES_ANEW = (
    *("kai what-if calibration", "kai what-if history", "kai what-if policies", "kai what-if --from"),
    "kai replay --from",
)


def short() -> list[tuple[str, str]]:
    """The commands that end; all of them with KAI_TEST_LONG=1."""
    ending = [
        (where, line)
        for where, line in commands()
        if not line.startswith((*GOES_ON, *ASKS_NOTHING, THE_DEMONSTRATION)) and FOLLOWING not in line
    ]
    return sorted(
        (
            one
            for one in (ending if "KAI_TEST_LONG" in os.environ else _told_apart(ending))
            if not one[0].startswith(TUTORIAL)
        ),
        key=lambda one: not one[1].removeprefix(".venv/bin/").startswith(DECIDES_ANEW),
    )


def long() -> list[tuple[str, str]]:
    """The commands that go on until they are interrupted."""
    return [(where, line) for where, line in commands() if line.startswith(tuple(GOES_ON))]


@dataclass
class Shell:
    """The directory for pasted commands: like that of a checkout."""

    here: Path
    environment: dict[str, str] = field(default_factory=dict)
    #: What the last line that goes on has said until it was ready.
    said: list[str] = field(default_factory=list)
    #: The same of the demonstration itself.
    first_said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("KAI_")}
        programs = self.here / "bin"
        programs.mkdir()
        put_on_path(programs)
        path = f"{programs}:{Path(sys.executable).parent}:{inherited['PATH']}"
        self.environment = {**inherited, "PATH": path, "HOME": str(self.here)}
        (self.here / ".venv").symlink_to(sys.prefix)

    def run(self, line: str) -> subprocess.CompletedProcess[str]:
        """Paste a line, and wait for its end; a shell is there for what only shells understand."""
        program, *words = line.split()
        if program.endswith("kai") and _PLAIN.fullmatch(line):
            return kai(*words, environment=self.environment, cwd=self.here, timeout=PATIENCE_S)
        return subprocess.run(
            ["bash", "-o", "pipefail", "-c", line],
            cwd=self.here,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )

    @contextmanager
    def running(self, line: str, *, until: str, ends: int = 0, **environment: str) -> Iterator[None]:
        """Run a line that goes on, wait until it says that it is ready; interrupt it in the end."""
        program, *arguments = shlex.split(line)
        module = "kai_cli.main" if (name := Path(program).name) == "kai" else f"{name.replace('-', '_')}.main"
        process, said = talking(module, *arguments, environment=self.environment | environment, cwd=self.here)
        self.said = lines = []
        with said:
            try:
                for printed in said:
                    lines.append(printed)
                    if until in printed:
                        break
                else:
                    pytest.fail(f"{line}: ended: {''.join(lines)}")
                yield
            finally:
                process.send_signal(signal.SIGINT)
                rest = said.read()
            assert process.wait(PATIENCE_S) == ends, (line, "".join(lines), rest)


@pytest.fixture(scope="module")
def demonstration() -> Iterator[Shell]:
    """The stack of `make run`, two clusters and a hub, with all that the documentation supposes in its directory."""
    with scratch_directory() as here:
        shell = Shell(here)
        (here / "examples").mkdir()
        for file in (ROOT / "examples").glob("*.yaml"):
            # A log of fewer pods takes the same answers, and `tests/e2e/test_demo.py` has all of them.
            fewer = re.sub(r"(parallelism|completions): \d\d", r"\1: 3", file.read_text())
            shorter = re.sub(r'run-seconds: "\d+"', 'run-seconds: "2"', fewer)
            (here / "examples" / file.name).write_text(shorter)
        (here / "team.yaml").write_text(POD.replace("NAME", "team"))
        (here / "submitted.yaml").write_text(POD.replace("NAME", "submitted"))
        (here / "new-job.yaml").write_text(POD.replace("NAME", "new-job"))
        tutorial = (ROOT / "docs/tutorial/first-answers.md").read_text()
        train = tutorial.partition("```yaml\n")[2].partition("```")[0].replace("nvidia.com/gpu: 5", "nvidia.com/gpu: 4")
        (here / "train.yaml").write_text(train)
        autoscaling = (ROOT / "docs/how-to/autoscaling.md").read_text()
        (here / "settings.yaml").write_text(autoscaling.partition("```yaml\n")[2].partition("```")[0])
        (here / "prices.csv").write_text("model,price\n*,2\n")
        shutil.copytree(ROOT / "docs/how-to/topologies", here / "docs/how-to/topologies")
        (here / "nodes.csv").write_text(NODES_CSV)
        (here / "pods.csv").write_text(PODS_CSV)
        (here / "jobs.csv").write_text(JOBS_CSV)
        # Work of teams comes for a while only: what is asked afterwards is asked of a log that stays as it is.
        demo = "kai demo --examples examples --clusters 2 --for 5s"
        with shell.running(demo, until="demo-2: is one of the hub's, and runs"):
            directory = DataDirectory(here / ".kai")
            running = directory.running()
            assert running is not None
            shell.environment["KUBECONFIG"] = running.clusters["demo"].kubeconfig
            shell.environment |= {"DEMONSTRATION_API": running.api_url, "KAI_API_TOKEN": running.api_key}
            owners = embedded_url_of(directory.postgres, running.database_url, "kai_migrate")
            shell.environment["OWNERS_URL"] = owners
            (here / "dispatched.yaml").write_text(POD.replace("NAME", "dispatched"))
            assert shell.run("kai submit dispatched.yaml --name train").returncode == 0
            shell.first_said = [*shell.said]
            deadline = time.monotonic() + PATIENCE_S
            assert shell.run("kai load train.yaml --cluster demo").returncode == 0
            for there in ("default/never-fits", "job/full-node", "job/train -n default"):
                while shell.run(f"kai why {there}").returncode and time.monotonic() < deadline:
                    time.sleep(0.2)
            yield shell


@pytest.fixture(scope="module")
def tried(demonstration: Shell) -> list[str]:
    """The lines that the demonstration has printed to be tried; the program that they name is there."""
    lines = [line.strip() for line in demonstration.first_said if re.match(r"  \S*kai ", line)]
    program = Path(sys.executable).with_name("kai")
    assert program.exists()
    assert all(line.startswith(f"{program} ") for line in lines)
    return [line.removeprefix(f"{program.parent}/") for line in lines]


def test_documentation_shows_what_can_be_run() -> None:
    assert len(short()) > 25
    assert len(long()) > 5
    assert {line.split()[1] for _, line in commands() if line.startswith("kai ")} >= {
        *("get", "why", "status", "logs", "replay", "audit", "retire", "simulate", "dump", "load", "import", "up"),
        *("demo", "fleet", "completion"),
    }


@pytest.mark.timeout(900)
def test_a_documented_command_ends_well_on_the_demonstration(demonstration: Shell, subtests: pytest.Subtests) -> None:
    for where, line in short():
        program = line.partition(" ")[0]
        expected = next((codes for start, codes in REFUSED.items() if line.startswith(start)), (0,))
        with subtests.test(line, where=where):
            if program in ("openssl", "kubectl") and shutil.which(program) is None:
                pytest.skip(f"no {program} here")
            done = demonstration.run(line)
            assert done.returncode in expected, f"{done.stdout}{done.stderr}"


def test_what_the_demonstration_says_to_try_is_run_as_it_is_printed(demonstration: Shell, tried: list[str]) -> None:
    """The lines that end are among those that the documentation shows, and run as such."""
    assert len(tried) > 8
    documented = [_words(line) for _, line in commands()]
    assert [line for line in tried if not any(_words(line) <= words for words in documented)] == []
    (follows,) = [line for line in tried if FOLLOWING in line]
    with demonstration.running(follows, until="\n", ends=130):
        pass


def test_readme_shows_how_answers_begin(demonstration: Shell) -> None:
    readme = (ROOT / "README.md").read_text()
    asked = re.findall(r"^\$ \.venv/bin/(kai .*)$", readme, flags=re.MULTILINE)
    assert len(asked) >= 4
    for line in asked:
        done = demonstration.run(line)
        shown = readme.partition(f"{line}\n")[2].partition("\n")[0]
        assert (done.returncode, done.stdout.startswith(shown.split(":")[0].split("  ")[0])) == (0, True), (line, done)


@pytest.mark.parametrize("start", RUN_ELSEWHERE)
def test_a_command_that_is_run_elsewhere_is_shown_and_run_there(start: str) -> None:
    file, call = RUN_ELSEWHERE[start]
    assert call in (ROOT / file).read_text()
    assert any(one.removeprefix(".venv/bin/").startswith(start) for _, line in shown() for one in meant(line))


def test_a_command_is_a_mention_only_if_it_names_nothing_or_is_listed() -> None:
    lines = {one.removeprefix(".venv/bin/") for _, line in shown() for one in meant(line)}
    for line in filter(is_mention, lines):
        left_out = set(re.findall(r"[A-Z]{3,}|…", line)) - {"CLUSTER"}
        assert not left_out or not line.startswith("kai "), line


def test_migrating_the_demonstrations_own_database_changes_nothing(demonstration: Shell) -> None:
    """`kai migrate`, which takes the database from the environment."""
    done = demonstration.run("KAI_DATABASE_URL=$OWNERS_URL kai migrate")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture(scope="module")
def beside(demonstration: Shell) -> Iterator[Shell]:
    """Another directory, with a simulated API server as `docs/reference/simulator.md` has it, and its kubelets."""
    with scratch_directory() as here:
        shell = Shell(here)
        (here / ".kai").mkdir()
        shutil.copytree(demonstration.here / "trace", here / "trace")
        shutil.copy(demonstration.here / "settings.yaml", here)
        (server,) = [line for _, line in long() if line.startswith("kai-apiserver")]
        with shell.running(server, until=GOES_ON["kai-apiserver"]):
            yield shell


#: Whole stacks that other tests start: `tests/chaos/test_second_instances.py`, `tests/chaos/test_agent_dials_out.py`,
#: `tests/e2e/test_shadow.py`, `tests/e2e/test_autoscaling.py`; two clusters are the demonstration itself. That of one
#: kubeconfig per service is started by `tests/e2e/test_stack.py`, while `tests/unit/cli/test_kubeconfigs.py` says which
#: one a service gets that is not named. That of a profile's file is `tests/e2e/test_own_cluster.py`'s, and
#: `tests/unit/cli/test_job_traces.py` loads the one that a trace makes. Here only with KAI_TEST_LONG=1.
STARTED_ELSEWHERE = (
    "--ha",
    "--compact",
    "--schedulers",
    "--shadow",
    "--kubeconfig",
    "--scheduler-config",
    "--clusters",
    "--profile trace/profile.yaml",
)


def longer() -> list[tuple[str, str]]:
    """The commands that go on, and that no other test starts."""
    lines = [
        (where, line)
        for where, line in _told_apart(long())
        if not line.startswith("kai-apiserver")
        and (
            "KAI_TEST_LONG" in os.environ
            or not (line.startswith("kai up") and any(f" {flag}" in line for flag in STARTED_ELSEWHERE))
        )
    ]
    # With --install-crds first: without, a fleet ends on a server that has none yet.
    return sorted(lines, key=lambda item: ("fleet" not in item[1], "--install-crds" not in item[1]))


@pytest.mark.timeout(900)
def test_a_documented_command_that_goes_on_gets_ready_and_ends_well(beside: Shell, subtests: pytest.Subtests) -> None:
    for where, line in longer():
        name = next(start for start in GOES_ON if line.startswith(start))
        own = {"KAI_DATA_DIR": f"{beside.here}/up"} if name == "kai up" else {}
        with subtests.test(line, where=where), beside.running(line, until=GOES_ON[name], **own):
            if "trace" in line:
                done = beside.run(f"KAI_DATA_DIR={beside.here}/up kai load trace/pods.json")
                assert done.returncode == 0, done.stderr
        shutil.rmtree(beside.here / "up", ignore_errors=True)
