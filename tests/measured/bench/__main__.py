"""`make bench`: every figure as one JSON line; `make bench ARGS="cycle log"` only those of some modules.

Of a module that is a package its parts can be measured alone: `make bench ARGS=scale.binding`.
"""

import importlib
import sys

from tests.measured.bench.scale import PARTS

_MODULES = (
    "cycle",
    "engine",
    "policies",
    "queues",
    "topology_cycles",
    "podrules",
    "numa",
    "log",
    "bus",
    "watcher",
    "apiserver",
    "fleet",
    "ingest",
    "exporter_node",
    "simulate",
    "questions",
    "replay",
    "history",
    "report",
    "month",
    "submission",
    "what_if",
    "dashboard",
    "end_to_end",
    "rest",
    "checks",
    "beside",
    "scale",
    *(f"scale.{part}" for part in PARTS),
)
#: Measured unless others are chosen: parts are in what they are parts of, and the month takes a quarter of an hour.
_ALL = tuple(name for name in _MODULES if "." not in name and name != "month")


def main() -> None:
    chosen = sys.argv[1:] or _ALL
    for name in chosen:
        if name not in _MODULES:
            sys.exit(f"bench: no {name}; there are: {' '.join(_MODULES)}")
    for name in chosen:
        for figure in importlib.import_module(f"tests.measured.bench.{name}").figures():
            print(figure.line(), flush=True)


if __name__ == "__main__":
    main()
