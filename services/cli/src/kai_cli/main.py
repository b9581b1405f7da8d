"""`kai`: one command line for everything.

A command's module is imported when the command runs, not before: so what is said of it in the list of commands stands
here as well (a test holds the two together).
"""

import gc
import os
import sys
from typing import Literal

from cyclopts import App, Group, Parameter
from kaicore.errors import ConfigurationError, KaiError, UnfoldableEvent
from kaicore.interpreter import version

_NO_COLOUR = "--no-color"

#: What is imported and folded stays: looking through it for cycles takes a fifth of the time, and there are none.
_GC_THRESHOLDS = (200_000, 5, 100)

app = App(
    name="kai",
    help="kai-ledger: a Kubernetes scheduler for GPU clusters that can explain and replay itself.",
    help_epilogue=f"All commands take {_NO_COLOUR} (or $NO_COLOR). kai COMMAND --help says more.",
    version=lambda: f"kai {version()}",
    # No `--empty-x` for what may be given several times.
    default_parameter=Parameter(negative_iterable=()),
)
_RUN, _ASK, _FILES, _UPKEEP = (
    Group(name, sort_key=place)
    for place, name in enumerate(("Run", "Ask", "With files, without a server", "Upkeep"), start=1)
)

#: The commands: words, module and function of `kai_cli`, and the first line of the help.
_COMMANDS = {
    "up = running.up:up": (
        "Run Postgres, NATS, a cluster and every service until Ctrl-C; a later `kai up` goes on where this one ended."
    ),
    "demo = demonstration.demo:demo": (
        "Show it all: start everything, apply the examples, show progress; then let it live until Ctrl-C."
    ),
    "load = running.load:load": (
        "Create the objects of manifests (YAML, JSON, folders) on a cluster; what is there already stays as it is."
    ),
    "fleet = running.fleet:fleet": (
        "Run simulated kubelets that join the API server of a kubeconfig; it takes the flags of `kai-fleet`."
    ),
    "cluster add = running.clusters:cluster_add": (
        "Register a cluster with the hub: `kai up` starts its processes, or an agent in the cluster dials out."
    ),
    "cluster remove = running.clusters:cluster_remove": (
        "Take a cluster from the hub: its processes end, its log stays. Refused while anything runs there."
    ),
    "cluster drain = running.clusters:cluster_drain": (
        "Give a cluster nothing more; what waits there goes elsewhere, what runs there runs to its end."
    ),
    "cluster resume = running.clusters:cluster_resume": "Give a cluster that was drained dispatches again.",
    "cluster list = running.clusters:cluster_list": (
        "List the hub's clusters: how they are, when they were heard of last, and what they have of the hub's."
    ),
    "cluster use = running.clusters:cluster_use": (
        "Choose the current cluster, of which commands about one cluster are where none is named; or say which it is."
    ),
    "cluster bound = running.clusters:cluster_bound": (
        "Bound what the work of a queue may hold in all clusters together; without limits there is no bound any more."
    ),
    "submit = running.dispatches:submit": (
        "Give objects to the hub, which makes them in one of its clusters: all of them in the same."
    ),
    "withdraw = running.dispatches:withdraw": (
        "Take a dispatch back, wherever it is: its objects are deleted, what runs of it ends."
    ),
    "agent = running.agent:agent": (
        "Run a cluster's watcher, binder and ingest beside it: they dial out to the hub's Postgres and NATS."
    ),
    "get = asking.questions:get": "List pods, groups, queues, nodes, zones, cycles, clusters or dispatches.",
    "priority = asking.questions:priority": ("Say in which order groups wait, and what puts each before the next."),
    "why = asking.questions:why": (
        "Say why a pod is where it is or nowhere; or why the pods of a Job, group, queue or node are."
    ),
    "who = asking.questions:who": (
        "Say who has the GPUs that a queue is owed: by which rule, since when, until when, and by another rule."
    ),
    "reserve = asking.reservations:reserve": (
        "Plan a reservation of nodes, for a queue, a namespace or maintenance: what it displaces; and make it."
    ),
    "drain = asking.reservations:drain": (
        "Plan a drain of nodes: the groups it touches, what each loses, where it goes on; and carry it out."
    ),
    "reservations = asking.reservations:reservations": (
        "List the reservations of nodes: when, for whom, and what is in their way."
    ),
    "state = asking.past:state": (
        "Show a cluster as it was at a moment: nodes, zones, pods, groups, queues or topology; or in figures."
    ),
    "diff = asking.past:diff": (
        "Say what is different between two moments: what is new, gone or changed, field by field."
    ),
    "status = asking.status:status": (
        "Say what runs, whether it is ready, how far behind the log it is, and where the logs end."
    ),
    "dashboard = asking.status:dashboard": (
        "Print an address at which a browser is logged in to the API: once, within a day."
    ),
    "logs = asking.service_logs:logs": "Print what a service said.",
    "report show = history.report:show": (
        "Say who held how many GPU-hours, by right or borrowed, and what of them was idle or lost."
    ),
    "report seal = history.report:seal": (
        "Seal the account of a month that is over: its figures and digest become an event."
    ),
    "report verify = history.report:verify": "Count a sealed month again, and compare; exit 1 if it is not the same.",
    "history = history.jobs:history": (
        "Say what became of jobs: waits, run times, GPU-hours, why they ended; of one by its attempts."
    ),
    "replay = history.replaying:replay": (
        "Run recorded cycles again on the states they were decided on, and compare; exit 1 if there is a difference."
    ),
    "audit verify = history.audit:audit_verify": (
        "Recompute the hash chain, and check that nothing was promised twice; exit 1 if anything is broken."
    ),
    "audit seal = history.audit:audit_seal": (
        "Verify the log, and write down where it stands, to be compared later; exit 1 if it is broken."
    ),
    "audit set-aside = history.audit:audit_set_aside": (
        "Set aside an event that cannot be decoded or folded: from then on it counts as if it said nothing."
    ),
    "audit placements = history.audit:audit_placements": (
        "Compare predicted placements with observed ones; exit 1 if an exporter is silent or a kubelet disagrees."
    ),
    "audit node = history.audit:audit_node": (
        "List everything that held a node: when, how much of which zone, by which record, and by which decision."
    ),
    "audit group = history.audit:audit_group": (
        "List what was decided about a group: placements, evictions and why, by which cycle and which rules."
    ),
    "audit evictions = history.audit:audit_evictions": (
        "List all evictions: of which pod, for whom, why, and what would spare it the next time."
    ),
    "shadow report = trials.shadow_report:report": (
        "Compare what a shadow decided with what the other scheduler did, pod by pod, and with the window simulated."
    ),
    "shadow promote = trials.shadow_report:promote": "Have a shard's shadow decide, and its scheduler stand by.",
    "shadow back = trials.shadow_report:back": "Have the scheduler of a shard decide again.",
    "what-if submit = trials.what_if_submit:submit_command": (
        "Say what would become of manifests that are submitted now: where, evicting whom, or when."
    ),
    "what-if start = asking.forecasts:start_command": (
        "Say when what waits is likely to start, from how long this cluster's pods have run."
    ),
    "what-if calibration = asking.forecasts:calibration_command": (
        "Say how often forecasts of starts came true, measured on the log itself."
    ),
    "what-if history = trials.what_if_history:history": (
        "Simulate history again with other settings, nodes, queues or priorities, and compare what comes of it."
    ),
    "what-if policies = trials.what_if_history:policies": (
        "Simulate history again with each of the three best policies: GPUs allocated, waits of each queue, evictions."
    ),
    "mcp = asking.mcp:mcp": (
        "Answer assistants over the Model Context Protocol: why work waits, who was evicted, what is free. It reads."
    ),
    "policy list = policies.listing:list_policies": (
        "List the bands of the score table with what fills each, and the policies of a shard with their arguments."
    ),
    "policy input = policies.history:policy_input": ("Record a fact from outside for policies, or list them."),
    "policy check = policies.trying:check": (
        "Try a policy on generated clusters: right and equal answers, in any order of nodes, in time; exit 1 if not."
    ),
    "policy history = policies.history:history": (
        "Say when policies went live in each shard, for which queues, and back, and in how many cycles each failed."
    ),
    "policy try = policies.trying:try_policy": (
        "Simulate history again with a policy and without it: GPUs, waits by queue and size, who wins, who loses."
    ),
    "simulate = trials.simulate:simulate_command": (
        "Schedule the pods of manifests on the nodes of manifests, and say where they go and why not, with no server."
    ),
    "export = history.exporting:export": (
        "Write a cluster's log, or a range of it, into one compressed file that can be verified and asked alone."
    ),
    "report-bug = history.exporting:report_bug": (
        "Write a range of a log without its names, which others replay with the same differences."
    ),
    "import log = history.exporting:import_log": (
        "Take a file that `kai export` wrote into a database, with the same positions, hashes and ids."
    ),
    "import openb = trials.job_traces:openb": (
        "Turn the OpenB trace into a fleet profile (OUT/profile.yaml) and pods (OUT/pods.json)."
    ),
    "import philly = trials.job_traces:philly": (
        "Turn jobs of the Philly trace into a fleet profile (OUT/profile.yaml) and pods (OUT/pods.json)."
    ),
    "import dlrm = trials.job_traces:dlrm": (
        "Turn instances of the DLRM trace of 2025 into a fleet profile (OUT/profile.yaml) and pods (OUT/pods.json)."
    ),
    "import csv = trials.job_traces:plain_csv": (
        "Turn a list of jobs of one's own into a fleet profile (OUT/profile.yaml) and pods (OUT/pods.json)."
    ),
    "import sources = trials.job_traces:sources": "Print where the public traces are, and the command that takes each.",
    "dump = trials.dump:dump": (
        "Write the objects of a cluster that matter to scheduling to standard output, for `kai simulate -`."
    ),
    "topology show = topology.show:show": (
        "Draw the trees of a cluster's topologies: what each domain uses and has free, and what still fits there."
    ),
    "topology generate = topology.generate:generate": (
        "Write a topology as manifests: from the labels of nodes, or from what ibnetdiscover prints of the fabric."
    ),
    "webhook certificates = upkeep.webhook_certificates:certificates": (
        "Make the admission webhook's certificate, and write its Secret and who is to trust it as manifests."
    ),
    "project = upkeep.database:project": (
        "Bring the read models up to the log's end; `kai-projector` does so all the time."
    ),
    "keys new = upkeep.keys:new": (
        "Make a key of the API: its hash goes into an access file, and the key is printed, once."
    ),
    "migrate = upkeep.database:migrate": (
        "Migrate a database and admit the roles of services; harmless when both is done already."
    ),
    "retire = upkeep.database:retire": (
        "Take the oldest month out of the log, and seal it; refused where the rest could not start without it."
    ),
    "erase pod = upkeep.database:erase_pod": (
        "Take a pod's name, labels and annotations out of the log, for good; what is left can be verified as before."
    ),
    "completion = main:completion": "Print the script that completes `kai` in a shell.",
}
#: Words that have commands below them.
_PARENTS = {
    "cluster": "Which clusters the hub has.",
    "audit": "Check the log itself, and ask who decided what.",
    "shadow": "What a shadow of a scheduler decided (`kai up --shadow`), and which of the two decides.",
    "what-if": "What would come of it if something were different.",
    "report": "GPU-hours: who held them, and what became of them.",
    "policy": "Policies of your own: what decides, checked and tried before it does.",
    "import": "Take a log that was exported into a database; turn traces into manifests.",
    "topology": "Network topologies: which nodes are close, and what is free there.",
    "webhook": "The admission webhook.",
    "keys": "Keys with which callers prove to the API who they are.",
    "erase": "Take personal data out of the log.",
}
_GROUPS = {
    _RUN: "up demo load fleet cluster submit withdraw agent",
    _ASK: (
        "get priority why who reserve drain reservations state diff report history status dashboard logs replay audit "
        "shadow what-if policy topology mcp"
    ),
    _FILES: "simulate export report-bug import dump",
    _UPKEEP: "webhook project keys migrate retire erase completion",
}


def _with_commands() -> None:
    """Give `app` its commands, each below the word that it begins with."""
    group_of = {name: group for group, names in _GROUPS.items() for name in names.split()}
    parents = {name: App(name=name, help=text, group=group_of[name]) for name, text in _PARENTS.items()}
    for parent in parents.values():
        app.command(parent)
    for command, text in _COMMANDS.items():
        words, _, target = command.partition(" = ")
        first, _, name = words.partition(" ")
        if name:
            parents[first].command(f"kai_cli.{target}", name=name, help=text)
        else:
            app.command(f"kai_cli.{target}", name=first, group=group_of[first], help=text)


_with_commands()


#: What a command does where it is not said: `kai topology` shows them, `kai what-if --from …` asks of history.
_USUAL = {"report": "show", "topology": "show", "what-if": "history"}


def completion(shell: Literal["bash", "zsh", "fish"], /) -> int:
    """Print the script that completes `kai` in a shell.

    For bash: `source <(kai completion bash)` in ~/.bashrc. For zsh: `kai completion zsh > "${fpath[1]}/_kai"`.
    For fish: `kai completion fish > ~/.config/fish/completions/kai.fish`.

    Args:
        shell: bash, zsh or fish.
    """
    sys.stdout.write(app.generate_completion(prog_name="kai", shell=shell))
    return 0


def _has_subcommand(arguments: list[str]) -> bool:
    """True if the line names a subcommand, or asks for help."""
    return bool(arguments) and (not arguments[0].startswith("-") or arguments[0] in ("--help", "-h"))


def spelled_out(arguments: list[str]) -> list[str]:
    """Return arguments with the subcommand that is meant where none is named."""
    usual = _USUAL.get(arguments[0]) if arguments else None
    if usual is None or _has_subcommand(arguments[1:]):
        return arguments
    return [arguments[0], usual, *arguments[1:]]


def _run(arguments: list[str]) -> int:
    """Run a command, and again where it met an event that cannot be folded: the next time it is quarantined."""
    met = set[tuple[str, int]]()
    while True:
        try:
            return app(spelled_out(arguments), result_action="return_value") or 0
        except UnfoldableEvent as failed:
            if (failed.cluster, failed.position) in met:
                raise
            met.add((failed.cluster, failed.position))


def main() -> None:
    """Run a command: exit 0 when all is well, 1 when the answer is bad, 2 when the question is."""
    gc.set_threshold(*_GC_THRESHOLDS)
    arguments = sys.argv[1:]
    if _NO_COLOUR in arguments:
        arguments = [argument for argument in arguments if argument != _NO_COLOUR]
        os.environ["NO_COLOR"] = "1"
    try:
        sys.exit(_run(arguments))
    except ConfigurationError as error:
        sys.stderr.write(f"kai: {error}\n")
        sys.exit(2)
    except KaiError as error:
        sys.stderr.write(f"kai: {error}\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our answer, such as `head`, has had enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


if __name__ == "__main__":
    main()
