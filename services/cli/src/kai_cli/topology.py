"""`kai topology`: the trees that a cluster's topologies make of its nodes."""

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from kaicore.errors import ConfigurationError

from kai_cli.manifests import read_files
from kai_cli.printing import print_data
from kai_cli.topology_objects import read_topologies
from kai_cli.topology_view import draw, view_of


def show(
    # For `-`, which is no option.
    *files: Annotated[Path, Parameter(allow_leading_hyphen=True)],
    nodes: bool = False,
    output: Annotated[Literal["tree", "json", "yaml"], Parameter(name=["--output", "-o"])] = "tree",
) -> int:
    """Draw the trees that the topologies of manifests make of their nodes, with what each domain has.

    Args:
        files: YAML or JSON, folders of them, or - for standard input, such as what `kai dump` writes.
        nodes: draw the single nodes too.
        output: tree, json or yaml.
    """
    if not files:
        raise ConfigurationError("show what? Name files or folders, or - for standard input")
    topologies = read_topologies(read_files(list(files)))
    for warning in topologies.warnings:
        sys.stderr.write(f"kai: warning: {warning}\n")
    keys = topologies.book.topologies()
    if not keys:
        raise ConfigurationError(f"no topology in {', '.join(map(str, files))}")
    views = [view_of(key, topologies.book.tree(key), topologies.nodes) for key in keys]
    if output == "tree":
        sys.stdout.write("\n".join(draw(view, nodes=nodes) for view in views))
    else:
        print_data({"topologies": views}, output)
    return 1 if any(view.problems for view in views) else 0
