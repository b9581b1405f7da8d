"""`kai`: one command line for everything.

A command's module is imported when the command runs, not before: so what is said of it in the list of commands stands
here as well (a test holds the two together).
"""

import gc
import os
import sys

from cyclopts import App, Group, Parameter
from kaicore.errors import ConfigurationError, KaiError, UnfoldableEvent
from kaicore.version import version

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

app.command(
    "kai_cli.running.up:up",
    name="up",
    group=_RUN,
    help="Run Postgres, NATS, a cluster and every service until Ctrl-C; a later `kai up` goes on where this one ended.",
)
app.command(
    "kai_cli.demonstration.demo:demo",
    name="demo",
    group=_RUN,
    help="Show it all: start everything, apply the examples, show progress; then let it live until Ctrl-C.",
)
app.command(
    "kai_cli.running.load:load",
    name="load",
    group=_RUN,
    help="Create the objects of manifests (YAML, JSON, folders) on a cluster; what is there already stays as it is.",
)
app.command(
    "kai_cli.running.fleet:fleet",
    name="fleet",
    group=_RUN,
    help="Run simulated kubelets that join the API server of a kubeconfig; it takes the flags of `kai-fleet`.",
)
cluster = App(name="cluster", help="Which clusters the hub has.", group=_RUN)
cluster.command(
    "kai_cli.hub.clusters:cluster_add",
    name="add",
    help="Register a cluster with the hub: `kai up` starts its processes, or an agent in the cluster dials out.",
)
cluster.command(
    "kai_cli.hub.clusters:cluster_remove",
    name="remove",
    help="Take a cluster from the hub: its processes end, its log stays. Refused while anything runs there.",
)
cluster.command(
    "kai_cli.hub.clusters:cluster_drain",
    name="drain",
    help="Give a cluster nothing more; what waits there goes elsewhere, what runs there runs to its end.",
)
cluster.command(
    "kai_cli.hub.clusters:cluster_resume",
    name="resume",
    help="Give a cluster that was drained dispatches again.",
)
cluster.command(
    "kai_cli.hub.clusters:cluster_list",
    name="list",
    help="List the hub's clusters: how they are, when they were heard of last, and what they have of the hub's.",
)
cluster.command(
    "kai_cli.hub.clusters:cluster_use",
    name="use",
    help="Choose the current cluster, of which commands about one cluster are where none is named; or say which it is.",
)
cluster.command(
    "kai_cli.hub.clusters:cluster_bound",
    name="bound",
    help="Bound what the work of a queue may hold in all clusters together; without limits there is no bound any more.",
)
app.command(cluster)
app.command(
    "kai_cli.hub.dispatches:submit",
    name="submit",
    group=_RUN,
    help="Give objects to the hub, which makes them in one of its clusters: all of them in the same.",
)
app.command(
    "kai_cli.hub.dispatches:withdraw",
    name="withdraw",
    group=_RUN,
    help="Take a dispatch back, wherever it is: its objects are deleted, what runs of it ends.",
)
app.command(
    "kai_cli.running.agent:agent",
    name="agent",
    group=_RUN,
    help="Run a cluster's watcher, binder and ingest beside it: they dial out to the hub's Postgres and NATS.",
)
app.command(
    "kai_cli.asking.questions:get",
    name="get",
    group=_ASK,
    help="List pods, groups, queues, nodes, zones, cycles, clusters or dispatches.",
)
app.command(
    "kai_cli.asking.questions:why",
    name="why",
    group=_ASK,
    help="Say why a pod is where it is or nowhere; or why the pods of a Job, group, queue or node are.",
)
app.command(
    "kai_cli.asking.past:state",
    name="state",
    group=_ASK,
    help="Show a cluster as it was at a moment: nodes, zones, pods, groups, queues or topology; or in figures.",
)
app.command(
    "kai_cli.asking.past:diff",
    name="diff",
    group=_ASK,
    help="Say what is different between two moments: what is new, gone or changed, field by field.",
)
app.command(
    "kai_cli.asking.status:status",
    name="status",
    group=_ASK,
    help="Say what runs, whether it is ready, how far behind the log it is, and where the logs end.",
)
app.command(
    "kai_cli.asking.dashboard:dashboard",
    name="dashboard",
    group=_ASK,
    help="Print an address at which a browser is logged in to the API: once, within a day.",
)
app.command("kai_cli.running.service_logs:logs", name="logs", group=_ASK, help="Print what a service said.")
app.command(
    "kai_cli.history.replaying:replay",
    name="replay",
    group=_ASK,
    help="Run recorded cycles again on the states they were decided on, and compare; exit 1 if there is a difference.",
)
audit = App(name="audit", help="Check the log itself, and ask who decided what.", group=_ASK)
audit.command(
    "kai_cli.history.audit:audit_verify",
    name="verify",
    help="Recompute the hash chain, and check that nothing was promised twice; exit 1 if anything is broken.",
)
audit.command(
    "kai_cli.history.audit:audit_seal",
    name="seal",
    help="Verify the log, and write down where it stands, to be compared later; exit 1 if it is broken.",
)
audit.command(
    "kai_cli.history.audit:audit_set_aside",
    name="set-aside",
    help="Set aside an event that cannot be decoded or folded: from then on it counts as if it said nothing.",
)
audit.command(
    "kai_cli.history.audit:audit_placements",
    name="placements",
    help="Compare predicted placements with observed ones; exit 1 if an exporter is silent or a kubelet disagrees.",
)
audit.command(
    "kai_cli.history.audit:audit_node",
    name="node",
    help="List everything that held a node: when, how much of which zone, by which record, and by which decision.",
)
audit.command(
    "kai_cli.history.audit:audit_group",
    name="group",
    help="List what was decided about a group: placements, evictions and why, by which cycle and which rules.",
)
app.command(audit)
shadow = App(name="shadow", help="What a shadow of another scheduler decided (`kai up --shadow`).", group=_ASK)
shadow.command(
    "kai_cli.trials.shadow_report:report",
    name="report",
    help="Compare what a shadow decided with what the other scheduler did, pod by pod, and with the window simulated.",
)
app.command(shadow)
what_if = App(name="what-if", help="What would come of it if something were different.", group=_ASK)
what_if.command(
    "kai_cli.trials.what_if_submit:submit_command",
    name="submit",
    help="Say what would become of manifests that are submitted now: where, evicting whom, or when.",
)
what_if.command(
    "kai_cli.trials.forecasts:start_command",
    name="start",
    help="Say when what waits is likely to start, from how long this cluster's pods have run.",
)
what_if.command(
    "kai_cli.trials.forecasts:calibration_command",
    name="calibration",
    help="Say how often forecasts of starts came true, measured on the log itself.",
)
what_if.command(
    "kai_cli.trials.what_if_history:history",
    name="history",
    help="Simulate history again with other settings, nodes, queues or priorities, and compare what comes of it.",
)
what_if.command(
    "kai_cli.trials.what_if_history:policies",
    name="policies",
    help="Simulate history again with each of the three best policies: GPUs allocated, waits of each queue, evictions.",
)
app.command(what_if)
policy = App(name="policy", help="Policies of your own: what decides, checked and tried before it does.", group=_ASK)
policy.command(
    "kai_cli.policies.listing:list_policies",
    name="list",
    help="List the bands of the score table with what fills each, and the policies of a shard with their arguments.",
)
policy.command(
    "kai_cli.policies.check:check",
    name="check",
    help="Try a policy on generated clusters: right and equal answers, in any order of nodes, in time; exit 1 if not.",
)
policy.command(
    "kai_cli.policies.trying:try_policy",
    name="try",
    help="Simulate history again with a policy and without it: GPUs, waits by queue and size, who wins, who loses.",
)
app.command(policy)
app.command(
    "kai_cli.trials.simulate:simulate_command",
    name="simulate",
    group=_FILES,
    help="Schedule the pods of manifests on the nodes of manifests, and say where they go and why not, with no server.",
)
app.command(
    "kai_cli.history.exporting:export",
    name="export",
    group=_FILES,
    help="Write a cluster's log, or a range of it, into one compressed file that can be verified and asked alone.",
)
importing = App(
    name="import", help="Take a log that was exported into a database; turn traces into manifests.", group=_FILES
)
importing.command(
    "kai_cli.history.exporting:import_log",
    name="log",
    help="Take a file that `kai export` wrote into a database, with the same positions, hashes and ids.",
)
importing.command(
    "kai_cli.trials.job_traces:openb",
    name="openb",
    help="Turn the OpenB trace into a fleet profile (OUT/profile.yaml) and pods (OUT/pods.json).",
)
importing.command(
    "kai_cli.trials.job_traces:philly",
    name="philly",
    help="Turn jobs of the Philly trace into a fleet profile (OUT/profile.yaml) and pods (OUT/pods.json).",
)
importing.command(
    "kai_cli.trials.job_traces:dlrm",
    name="dlrm",
    help="Turn instances of the DLRM trace of 2025 into a fleet profile (OUT/profile.yaml) and pods (OUT/pods.json).",
)
importing.command(
    "kai_cli.trials.job_traces:plain_csv",
    name="csv",
    help="Turn a list of jobs of one's own into a fleet profile (OUT/profile.yaml) and pods (OUT/pods.json).",
)
importing.command(
    "kai_cli.trials.job_traces:sources",
    name="sources",
    help="Print where the public traces are, and the command that takes each.",
)
app.command(importing)
app.command(
    "kai_cli.trials.dump:dump",
    name="dump",
    group=_FILES,
    help="Write the objects of a cluster that matter to scheduling to standard output, for `kai simulate -`.",
)
topology = App(name="topology", help="Network topologies: which nodes are close, and what is free there.", group=_ASK)
topology.command(
    "kai_cli.topology.show:show",
    name="show",
    help="Draw the trees of a cluster's topologies: what each domain uses and has free, and what still fits there.",
)
topology.command(
    "kai_cli.topology.generate:generate",
    name="generate",
    help="Write a topology as manifests: from the labels of nodes, or from what ibnetdiscover prints of the fabric.",
)
app.command(topology)
webhook = App(name="webhook", help="The admission webhook.", group=_UPKEEP)
webhook.command(
    "kai_cli.upkeep.webhook_certificates:certificates",
    name="certificates",
    help="Make the admission webhook's certificate, and write its Secret and who is to trust it as manifests.",
)
app.command(webhook)
app.command(
    "kai_cli.upkeep.database:project",
    name="project",
    group=_UPKEEP,
    help="Bring the read models up to the log's end; `kai-projector` does so all the time.",
)
keys = App(name="keys", help="Keys with which callers prove to the API who they are.", group=_UPKEEP)
keys.command(
    "kai_cli.upkeep.keys:new",
    name="new",
    help="Make a key of the API: its hash goes into an access file, and the key is printed, once.",
)
app.command(keys)
app.command(
    "kai_cli.upkeep.database:migrate",
    name="migrate",
    group=_UPKEEP,
    help="Migrate a database and admit the roles of services; harmless when both is done already.",
)
app.command(
    "kai_cli.upkeep.database:retire",
    name="retire",
    group=_UPKEEP,
    help="Take the oldest month out of the log, and seal it; refused where the rest could not start without it.",
)
erase = App(name="erase", help="Take personal data out of the log.", group=_UPKEEP)
erase.command(
    "kai_cli.upkeep.database:erase_pod",
    name="pod",
    help="Take a pod's name, labels and annotations out of the log, for good; what is left can be verified as before.",
)
app.command(erase)
app.command(
    "kai_cli.upkeep.completion:completion",
    name="completion",
    group=_UPKEEP,
    help="Print the script that completes `kai` in a shell.",
)


#: What a command does where it is not said: `kai topology` shows them, `kai what-if --from …` asks of history.
_USUAL = {"topology": "show", "what-if": "history"}


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
