"""`make chart`: lint and render deploy/chart, write deploy/k8s from it, check what is rendered, pack it.

The chart is the one source: the manifests in deploy/k8s are its templates, rendered with the values of
deploy/chart/ci/kustomize-values.yaml. Helm is that of the package helm-python-sdk, which binds Helm's own Go library;
no program `helm` is needed, and no cluster. With --test: also apply what is rendered to an API server, and run the
examples with nothing but the chart's rights (tests/e2e/test_chart.py).
"""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import helm_python
from kaicore.yaml_text import load_yaml, load_yaml_all

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from kaicore.kube.kinds.table import KINDS  # noqa: E402

from scripts.kube_schemas import VERSIONS, problems, without_schemas  # noqa: E402

CHART = ROOT / "deploy/chart"
MANIFESTS = ROOT / "deploy/k8s"
#: What is applied instead, where GPUs are shared.
SHARING = ROOT / "deploy/overlays/gpu-sharing"
_NEXT = "\n---\n"
#: What is applied by itself, where several clusters have one hub.
SEVERAL_CLUSTERS = {
    name: ROOT / "deploy/hub" / name for name in ("hub.yaml", "registration.yaml", "rights-for-dispatches.yaml")
}
#: The watcher's rights, which the table of kinds is made into.
WATCHED = CHART / "templates/_watched.tpl"
NAMESPACE = "kai-system"
#: Values by which each thing that is off by default is rendered as well.
EVERYTHING = CHART / "ci/everything-values.yaml"
REFERENCE = ROOT / "docs/reference/chart.md"
#: What every service has; the page tells of it once.
_OF_EVERY_SERVICE = frozenset({"env", "resources", "nodeSelector", "tolerations", "priorityClassName"})
_HEAD = """# Values of the Helm chart

`deploy/chart`, made from its `values.schema.json` and `values.yaml` by `make chart`. Helm refuses a value that is
not here, or of another form. How it is installed: [deploy](../how-to/deploy.md). Every service also has `env`
(further settings as variables, [settings](settings.md)), `resources`, `nodeSelector`, `tolerations`
and `priorityClassName`.

"""

Json = dict[str, Any]


def version() -> str:
    """Return the version of the package, which the chart has too."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def watched() -> str:
    """Return the template of the watcher's rights: to list and watch every kind of the table, wherever it is served."""
    plurals: dict[str, set[str]] = {}
    for kind in KINDS:
        plurals.setdefault(kind.resource.group, set()).add(kind.resource.plural)
    rules = "".join(
        f"\n  - apiGroups: [{group or json.dumps(group)}]\n    resources: [{', '.join(sorted(names))}]\n"
        "    verbs: [list, watch]"
        for group, names in sorted(plurals.items())
    )
    head = "{{- /* Made from kaicore.kube.kinds.table by `make chart`. */ -}}"
    return f'{head}\n{{{{- define "kai.watched" }}}}{rules}\n{{{{- end }}}}\n'


def rendered(values: Json, *, name: str = "kai", namespace: str = NAMESPACE) -> dict[str, str]:
    """Return the text that each template gives, by its path in the chart; empty ones and notes are left out."""
    with helm_python.Chart.load(CHART) as chart:
        texts = chart.render(values, name=name, namespace=namespace)
    return {
        path.partition("/")[2]: text.strip() + "\n"
        for path, text in sorted(texts.items())
        if path.endswith(".yaml") and any(documents(text))
    }


def documents(text: str) -> Iterator[Json]:
    """Return the objects of a text of YAML."""
    yield from (document for document in load_yaml_all(text) if document)


def objects(values: Json, *, namespace: str = NAMESPACE) -> list[Json]:
    """Return every object that values give, custom resource definitions included."""
    texts = rendered(values, namespace=namespace).values()
    return [*_definitions(), *(document for text in texts for document in documents(text))]


@cache
def _definitions() -> tuple[Json, ...]:
    texts = (path.read_text() for path in sorted((CHART / "crds").glob("*.yaml")))
    return tuple(document for text in texts for document in documents(text))


def manifests() -> dict[Path, str]:
    """Return the files of deploy/k8s and deploy/hub that are made from the chart."""
    values = load_yaml((CHART / "ci/kustomize-values.yaml").read_text())
    texts = rendered(values)
    made = {
        SEVERAL_CLUSTERS.get(name := Path(path).name, MANIFESTS / name): f"{_made_from(path)}{text}"
        for path, text in texts.items()
    }
    shared = rendered({**values, "spoke": {**values["spoke"], "gpuSharing": {"enabled": True}}})
    return made | _overlay_of_sharing(texts, shared)


def _made_from(path: str) -> str:
    return f"# Made from deploy/chart/{path} by `make chart`: change that.\n"


def _overlay_of_sharing(without: dict[str, str], shared: dict[str, str]) -> dict[Path, str]:
    """Return the overlay for shares of GPUs: what is new is added, what is changed is a patch, the webhook is whole.

    Args:
        without: the rendered templates without shares.
        shared: those with shares.
    """
    made: dict[Path, str] = {}
    for path, text in shared.items():
        name, known = Path(path).stem, without.get(path, "").split(_NEXT)
        if path.endswith("webhook.yaml"):
            made[SHARING / f"{name}.yaml"] = f"{_made_from(path)}{text}"
            continue
        different = [one for one in text.split(_NEXT) if one.strip() not in {other.strip() for other in known}]
        deployments = [one for one in different if any(item["kind"] == "Deployment" for item in documents(one))]
        for ending, parts in (("", [one for one in different if one not in deployments]), ("-patch", deployments)):
            if parts:
                made[SHARING / f"{name}{ending}.yaml"] = _made_from(path) + _NEXT.join(parts).strip() + "\n"
    return made


def findings(values: Json, versions: Sequence[str] = VERSIONS) -> list[str]:
    """Return what `helm lint --strict` finds for any version of Kubernetes, and what no API server would take."""
    found: dict[str, None] = {}
    # Helm looks at the range of versions and at APIs that are gone: the first and the last version show both.
    for kubernetes in (versions[0], versions[-1]):
        report = helm_python.lint(CHART, values, strict=True, namespace=NAMESPACE, kube_version=f"v{kubernetes}.0")
        worth = (message for message in report["messages"] if message["severity"] > 1)
        found |= {f"{message['path']}: {message['error']}": None for message in worth}
        found |= dict.fromkeys(report["errors"])
    if not found:
        made = objects(values)
        for kubernetes in versions:
            if kubernetes not in without_schemas():
                found |= dict.fromkeys(problems(made, kubernetes))
    return list(found)


def reference() -> str:
    """Return the page of docs/reference with a line for each value."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    with helm_python.Chart.load(CHART) as chart:
        defaults = chart.values
    alike: dict[tuple[str, ...], list[str]] = {}
    for path, shown, meaning in _rows(schema, schema, defaults, ""):
        # Values of one name that say the same stand together.
        key = (path.rpartition(".")[2], shown, meaning) if shown else (path,)
        alike.setdefault((*key, shown, meaning), []).append(f"`{path}`")
    return _HEAD + "".join(
        f"- {', '.join(paths)}{f' ({key[-2]})' if key[-2] else ''}: {key[-1]}\n" for key, paths in alike.items()
    )


def _rows(schema: Json, whole: Json, default: Any, path: str) -> Iterator[tuple[str, str, str]]:
    for name, field in schema["properties"].items():
        described = whole["$defs"][field["$ref"].rpartition("/")[2]] if "$ref" in field else field
        value = default.get(name) if isinstance(default, dict) else None
        if name == "global" or name in _OF_EVERY_SERVICE:
            continue
        parts = "properties" in described
        if "description" in described:
            shown = "" if value is None or parts else _shown(value)
            yield f"{path}{name}", shown, described["description"]
        if parts:
            yield from _rows(described, whole, value, f"{path}{name}.")
        elif "properties" in described.get("items", {}):
            yield from _rows(described["items"], whole, None, f"{path}{name}[].")


def _shown(value: Any) -> str:
    return f"`{value}`" if isinstance(value, str) and value else f"`{json.dumps(value)}`"


def versions_written(text: str) -> str:
    """Return a Chart.yaml with the version of the package."""
    return re.sub(r"^(version|appVersion): .*$", rf"\g<1>: {version()}", text, flags=re.MULTILINE)


def main() -> int:
    """Do all of it; 1 when something is wrong with the chart."""
    helm_python.disable_logging()
    about = CHART / "Chart.yaml"
    about.write_text(versions_written(about.read_text()))
    everything = load_yaml(EVERYTHING.read_text())
    WATCHED.write_text(watched())
    wrong = [*findings({}), *findings(everything)]
    for line in dict.fromkeys(wrong):
        sys.stderr.write(f"{line}\n")
    if wrong:
        return 1
    for path, text in manifests().items():
        path.write_text(text)
    REFERENCE.write_text(reference())
    target = ROOT / "build"
    target.mkdir(exist_ok=True)
    archive = helm_python.package(CHART, destination=target)
    checked = [kubernetes for kubernetes in VERSIONS if kubernetes not in without_schemas()]
    sys.stdout.write(
        f"Helm {helm_python.helm_sdk_version()}; {len(objects({}))} objects by default, {len(objects(everything))} "
        f"with everything on; checked against Kubernetes {', '.join(checked)}\n"
    )
    if without_schemas():
        sys.stdout.write(f"no schemas here for Kubernetes {', '.join(without_schemas())}\n")
    sys.stdout.write(f"{Path(archive).relative_to(ROOT)}\n")
    sys.stdout.flush()
    if "--test" in sys.argv[1:]:
        command = [sys.executable, "-m", "pytest", "--quiet", "tests/e2e/test_chart.py"]
        return subprocess.run(command, cwd=ROOT, env=os.environ | {"KAI_TEST_LONG": "1"}, check=False).returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
