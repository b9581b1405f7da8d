"""No module of ours imports in a circle, however long; contracts about packages are in `.importlinter`."""

import configparser
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp


def main() -> int:
    contracts = configparser.ConfigParser()
    contracts.read(Path(__file__).parent.parent / ".importlinter")
    packages = contracts["importlinter"]["root_packages"].split()
    graph = grimp.build_graph(*packages)
    modules = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        TopologicalSorter(modules).prepare()
    except CycleError as error:
        sys.stderr.write(f"modules import in a circle: {' <- '.join(error.args[1])}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
