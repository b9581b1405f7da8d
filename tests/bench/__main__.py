"""`make bench`: every figure as one JSON line; `make bench ARGS="cycle log"` only those of some modules."""

import importlib
import sys

_MODULES = (
    "cycle",
    "engine",
    "queues",
    "topology",
    "topology_cycles",
    "podrules",
    "numa",
    "log",
    "bus",
    "watcher",
    "apiserver",
    "fleet",
    "exporter",
    "simulate",
    "questions",
    "replay",
    "history",
    "submission",
    "what_if",
    "dashboard",
    "end_to_end",
)


def main() -> None:
    """Measure."""
    chosen = sys.argv[1:] or _MODULES
    for name in chosen:
        if name not in _MODULES:
            sys.exit(f"bench: no {name}; there are: {' '.join(_MODULES)}")
    for name in chosen:
        for figure in importlib.import_module(f"tests.bench.{name}").figures():
            print(figure.line(), flush=True)


if __name__ == "__main__":
    main()
