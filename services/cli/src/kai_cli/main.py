"""`kai`: one command line for everything."""

import sys

from cyclopts import App
from kaicore.errors import ConfigurationError, KaiError, UnknownSubject

app = App(name="kai", help="kai-ledger: a Kubernetes scheduler for GPU clusters that can explain and replay itself.")
app.command("kai_cli.up:up", name="up")
app.command("kai_cli.demo:demo", name="demo")
app.command("kai_cli.questions:why", name="why")
app.command("kai_cli.questions:get", name="get")
app.command("kai_cli.checks:replay", name="replay")
audit = App(name="audit", help="Check the log itself.")
audit.command("kai_cli.checks:audit_verify", name="verify")
app.command(audit)
importing = App(name="import", help="Turn foreign data into manifests.")
importing.command("kai_cli.openb:openb", name="openb")
app.command(importing)
app.command("kai_cli.simulate:simulate_command", name="simulate")
app.command("kai_cli.dump:dump", name="dump")
app.command("kai_cli.load:load", name="load")
app.command("kai_cli.fleet:fleet", name="fleet")
app.command("kai_cli.migrate:migrate", name="migrate")


def main() -> None:
    """Run a command: exit 0 when all is well, 1 when the answer is bad, 2 when the question is."""
    try:
        sys.exit(app(sys.argv[1:], result_action="return_value") or 0)
    except (ConfigurationError, UnknownSubject) as error:
        sys.stderr.write(f"kai: {error}\n")
        sys.exit(2)
    except KaiError as error:
        sys.stderr.write(f"kai: {error}\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
