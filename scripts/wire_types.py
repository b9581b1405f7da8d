"""Write down how the built-in Kubernetes types are encoded as protobuf, for the simulated API server to read them.

The source is the Go types of the modules k8s.io/api, k8s.io/apimachinery and k8s.io/apiextensions-apiserver. Their tags
have every field's number and name, and whether its absence differs from its zero. Run it again for another version
of Kubernetes, after `go mod download` of the three:
`.venv/bin/python scripts/wire_types.py v0.36.0`. The version's number is the same for all three.
"""

import json
import os
import re
import sys
from pathlib import Path

from kai_apiserver.resources.builtin import BUILTIN_RESOURCES

TARGET = Path(__file__).parent.parent / "tools/apiserver/src/kai_apiserver/http/wire_types.json"
MODULES = Path(os.environ.get("GOMODCACHE", Path.home() / "go/pkg/mod"))

#: Types that have an encoding of their own.
SPECIAL = {
    "k8s.io/apimachinery/pkg/api/resource.Quantity": "quantity",
    "k8s.io/apimachinery/pkg/apis/meta/v1.Time": "time",
    "k8s.io/apimachinery/pkg/apis/meta/v1.MicroTime": "microtime",
    "k8s.io/apimachinery/pkg/apis/meta/v1.Duration": "duration",
    "k8s.io/apimachinery/pkg/apis/meta/v1.FieldsV1": "json",
    "k8s.io/apimachinery/pkg/runtime.RawExtension": "json",
    "k8s.io/apimachinery/pkg/util/intstr.IntOrString": "int-or-string",
    "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1.JSON": "json",
}
#: Packages with types that are strings or numbers here, and are not looked into.
STRINGS = ("k8s.io/apimachinery/pkg/types",)
SCALARS = {
    "string": "string", "bool": "boolean", "int32": "integer", "int64": "integer", "int": "integer",
    "uint32": "integer", "uint64": "integer", "float64": "double", "byte": "byte",
}  # fmt: skip
#: The packages of groups that are not named after them.
PACKAGES = {
    "": "k8s.io/api/core/v1",
    "apiextensions.k8s.io": "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1",
}
#: Kinds that only subresources and deletions take.
OTHERS = [
    ("autoscaling", "v1", "Scale"), ("policy", "v1", "Eviction"), ("meta.k8s.io", "v1", "DeleteOptions"),
    ("authentication.k8s.io", "v1", "TokenRequest"),
]  # fmt: skip

STRUCT = re.compile(r"^type (\w+) struct \{\n(.*?)^\}", re.M | re.S)
EMPTY = re.compile(r"^type (\w+) struct ?\{\}", re.M)
OTHER = re.compile(r"^type (\w+) (?!struct|interface)=?\s*(\S.*)$", re.M)
FIELD = re.compile(r"^\s*(?:(\w+)\s+)?([\w.*\[\]]+)\s+`([^`]*)`", re.M)
IMPORT = re.compile(r'^\s*(?:import\s+)?(\w+)?\s*"([^"]+)"$', re.M)


def directory(package: str, version: str) -> Path:
    module, _, rest = package.removeprefix("k8s.io/").partition("/")
    return MODULES / f"k8s.io/{module}@{version}" / rest


class Package:
    """The types of a Go package."""

    def __init__(self, path: str, version: str) -> None:
        self.path = path
        self.structs: dict[str, str] = {}
        self.others: dict[str, str] = {}
        self.imports: dict[str, str] = {}
        for file in sorted(directory(path, version).glob("*.go")):
            if file.name.startswith(("zz_", "generated")) or file.name.endswith("_test.go"):
                continue
            text = file.read_text()
            self.structs |= dict(STRUCT.findall(text)) | dict.fromkeys(EMPTY.findall(text), "")
            self.others |= {name: kind.partition("//")[0].strip() for name, kind in OTHER.findall(text)}
            for alias, imported in IMPORT.findall(text):
                self.imports[alias or imported.rpartition("/")[2]] = imported


class Digest:
    """Messages by name, found from the kinds that are served."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.packages: dict[str, Package] = {}
        self.messages: dict[str, dict[str, str]] = {}

    def package(self, path: str) -> Package:
        if path not in self.packages:
            self.packages[path] = Package(path, self.version)
        return self.packages[path]

    def message(self, path: str, name: str) -> str:
        """Take a struct in; return its name here: that of its package's group, and its own."""
        short = f"{path.removesuffix('/v1').rpartition('/')[2]}.{name}"
        if short in self.messages:
            return short
        fields = self.messages[short] = {}
        package = self.package(path)
        for _, kind, tags in FIELD.findall(package.structs[name]):
            wire = re.search(r'protobuf:"\w+,(\d+)', tags)
            if wire is None:
                continue
            tag = re.search(r'json:"([^"]*)"', tags)
            json_name, *options = (tag[1] if tag else "").split(",")
            distinct = kind.startswith(("*", "[]", "map[")) or "omitempty" not in options
            notation = self.notation(kind.removeprefix("*"), package)
            if not json_name:
                json_name = "" if "inline" in options else re.search(r"name=(\w+)", tags)[1]
            fields[wire[1]] = f"{json_name} {notation}" + ("" if distinct or not json_name else " omitted")
        return short

    def notation(self, kind: str, package: Package) -> str:
        """A Go type in the words of the table."""
        kind = kind.removeprefix("*")
        if kind == "[]byte":
            return "bytes"
        if kind.startswith("[]"):
            return f"[]{self.notation(kind[2:], package)}"
        if kind.startswith("map["):
            return "{}" + self.notation(kind.partition("]")[2], package)
        if kind in SCALARS:
            return SCALARS[kind]
        alias, _, name = kind.rpartition(".")
        path = package.imports[alias] if alias else package.path
        if f"{path}.{name}" in SPECIAL:
            return SPECIAL[f"{path}.{name}"]
        if path in STRINGS:
            return "string"
        named = self.package(path)
        if name in named.structs:
            return self.message(path, name)
        underlying = named.others[name]
        if underlying == "[]string":
            return "strings"  # a list that has a type of its own is a message
        return self.notation(underlying, named)

    def root(self, group: str, version: str, kind: str) -> str:
        path = PACKAGES.get(group, f"k8s.io/api/{group.partition('.')[0]}/{version}")
        if group == "meta.k8s.io":
            path = "k8s.io/apimachinery/pkg/apis/meta/v1"
        return self.message(path, kind)


def main(version: str) -> None:
    digest = Digest(version)
    served = [(item.group, item.version, item.kind) for item in BUILTIN_RESOURCES]
    kinds = {
        f"{f'{group}/' if group else ''}{api_version} {kind}": digest.root(group, api_version, kind)
        for group, api_version, kind in dict.fromkeys([*served, *OTHERS])
    }
    lines = [
        f'"{name}":{json.dumps(fields, separators=(",", ":"))}' for name, fields in sorted(digest.messages.items())
    ]
    head = f'{{"source":"k8s.io/api {version}",\n"kinds":{json.dumps(kinds, indent=0)},\n"messages":{{\n'
    TARGET.write_text(head + ",\n".join(lines) + "\n}}\n")


if __name__ == "__main__":
    main(sys.argv[1])
