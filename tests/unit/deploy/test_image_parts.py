"""Parts of `make image`: the same files give the same layers, and the contents of an image have hashes."""

import hashlib
import io
import json
import os
import tarfile
import zipfile
from pathlib import Path

import pytest
import zstandard

from scripts.image import base, bill, wheels
from scripts.image.layers import File, Layer, Tree, digest, folder, packed
from scripts.image.layout import Layout

ROOT = Path(__file__).parents[3]
LOCK = base.read_lock(ROOT / "deploy/image/base.lock")


def content_of(layer: Layer) -> dict[str, tarfile.TarInfo]:
    plain = zstandard.ZstdDecompressor().decompressobj().decompress(layer.blob)
    with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
        return {member.name: member for member in tar}


def wheel(path: Path, name: str, files: dict[str, str]) -> Path:
    place = path / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(place, "w") as archive:
        archive.writestr(f"{name}-1.0.dist-info/METADATA", f"Name: {name}\nVersion: 1.0\nLicense-Expression: MIT\n")
        for file, text in files.items():
            archive.writestr(file, text)
    return place


def test_layer_is_the_same_whatever_the_order_and_has_times_and_owners_of_none() -> None:
    tree: Tree = {"a/b/c": File(b"x", mode=0o755), "a/link": File(target="b/c"), "data": folder(owner=65532)}
    one, other = packed(tree, epoch=7), packed(dict(reversed(tree.items())), epoch=7)
    assert one == other
    assert one.digest != packed(tree, epoch=8).digest
    members = content_of(one)
    assert list(members) == ["a", "a/b", "a/b/c", "a/link", "data"]
    assert {(member.mtime, member.uname, member.gname) for member in members.values()} == {(7, "", "")}
    assert (members["a/b/c"].mode, members["a/link"].linkname, members["data"].uid) == (0o755, "b/c", 65532)


def test_lock_of_the_base_has_each_package_for_each_architecture_by_hash() -> None:
    assert all(len(package.sha256) == 64 for package in LOCK)
    names = {
        architecture: sorted(one.name for one in base.of(LOCK, architecture)) for architecture in ("amd64", "arm64")
    }
    assert names["amd64"] == names["arm64"]
    assert f"python{base.PYTHON}-minimal" in names["amd64"]
    versions = {(one.name, one.version) for one in LOCK}
    assert len(versions) == len(names["amd64"]), "both architectures are of one version"


def test_requirements_are_those_of_the_images_python_and_architecture() -> None:
    lock = (
        "a==1 ; python_full_version < '3.12' \\\n    --hash=sha256:1\n    # via x\n"
        "a==2 ; python_full_version >= '3.12' \\\n    --hash=sha256:2\n"
        "b[c]==3 ; platform_machine == 'aarch64' \\\n    --hash=sha256:3\n"
    )
    assert wheels.requirements_of(lock, "amd64").split("\n")[0] == "a==2 \\"
    assert "b[c]==3" in wheels.requirements_of(lock, "arm64")
    assert "b[c]==3" not in wheels.requirements_of(lock, "amd64")


def test_wheels_are_where_python_looks_without_programs_of_others_and_strays(tmp_path: Path) -> None:
    points = "[console_scripts]\nkai = kai_cli.main:main\n"
    files = {
        "ours/__init__.py": "x = 1\n",
        "ours-1.0.dist-info/entry_points.txt": points,
        "ours-1.0.data/scripts/y": "",
        "bazel-project/external/rules_python+/x/y": "",
    }
    ours = wheels.described(wheel(tmp_path, "ours", files))
    assert (ours.name, ours.version, ours.licence) == ("ours", "1.0", "MIT")
    tree = wheels.installed([ours])
    assert f"{wheels.SITE}/ours/__init__.py" in tree
    assert not [path for path in tree if path.endswith("/y")]
    programs = wheels.programs(ours)
    assert programs["opt/kai/bin/kai"].content == (
        b"#!/opt/kai/bin/python\nimport sys\n\nfrom kai_cli.main import main\n\nsys.exit(main())\n"
    )
    assert programs["opt/kai/bin/python"].target == "/usr/bin/python3.13"


def test_bill_and_provenance_name_every_part_by_hash_and_are_the_same_twice(tmp_path: Path) -> None:
    ours = wheels.described(wheel(tmp_path, "ours", {}))
    document = bill.bill("1.0", "arm64", base.of(LOCK, "arm64"), [ours])
    assert document == bill.bill("1.0", "arm64", base.of(LOCK, "arm64"), [ours])
    parts = {part["name"]: part for part in json.loads(document)["components"]}
    assert parts["ours"]["hashes"][0]["content"] == digest(ours.path.read_bytes()).removeprefix("sha256:")
    assert parts["libc6"]["purl"].startswith("pkg:deb/debian/libc6@")
    assert all(part["hashes"] for part in parts.values())
    statement = json.loads(bill.provenance("sha256:ab", "c0ffee", 7, LOCK, {"arm64": [ours]}))
    assert statement["subject"] == [{"name": "kai-ledger", "digest": {"sha256": "ab"}}]
    of = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert len(of) == len(LOCK) + 2
    assert "unsigned" in statement["predicate"]["runDetails"]["builder"]["id"]


def test_layout_names_index_and_what_is_about_it(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "image")
    layer = packed({"a": File(b"x")}, epoch=0)
    config = {"User": "65532:65532", "Labels": {"org.opencontainers.image.version": "1.0"}}
    images = [layout.image(one, [layer], config, "1970-01-01T00:00:00Z") for one in base.ARCHITECTURES]
    layout.attach(layout.index(images, "1.0", {}), b"{}", bill.BILL_TYPE, "bill.json")
    layout.finish()

    def read(reference: dict[str, str]) -> dict[str, object]:
        blob = (tmp_path / "image/blobs" / reference["digest"].replace(":", "/")).read_bytes()
        assert (digest(blob), len(blob)) == (reference["digest"], reference["size"])
        return dict(json.loads(blob))

    named, attached = json.loads((tmp_path / "image/index.json").read_text())["manifests"]
    assert named["annotations"] == {"org.opencontainers.image.ref.name": "1.0"}
    assert read(attached)["subject"]["digest"] == named["digest"]  # type: ignore[index]
    platforms = [one["platform"] for one in read(named)["manifests"]]  # type: ignore[attr-defined]
    assert [one["architecture"] for one in platforms] == ["amd64", "arm64"]
    manifest = read(images[0])
    assert read(manifest["config"])["rootfs"] == {"type": "layers", "diff_ids": [layer.diff_id]}  # type: ignore[arg-type]


def test_package_that_is_not_to_be_had_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LookupError, match="apt-get is not installed here"):
        base.Archive(tmp_path).fetch(LOCK)


#: An archive that has dropped what the lock names, and its snapshot, which has it. The real one is on the internet.
APT_GET = """#!/bin/sh
for argument; do case "$argument" in -oDir::Etc::sourcelist=*) sources="${argument#*=}";; esac; done
case "$*" in
*indextargets*) echo http://deb.debian.org/debian;;
*download*) grep -q snapshot "$sources" || { echo "E: Version '1' for 'libc6:arm64' was not found" >&2; exit 100; }
  cp "$sources" libc6_1_arm64.deb;;
esac
"""


@pytest.fixture
def apt_get(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin/apt-get"
    program.parent.mkdir()
    program.write_text(APT_GET)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


SNAPSHOT = "\n\n".join(
    "Types: deb\n"
    f"URIs: http://snapshot.debian.org/archive/{archive}/20261123T190000Z\n"
    f"Suites: {suites}\n"
    "Components: main\n"
    "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
    "Check-Valid-Until: no\n"
    for archive, suites in (("debian", "trixie trixie-updates"), ("debian-security", "trixie-security"))
)


@pytest.mark.usefixtures("apt_get")
def test_package_that_the_archive_has_dropped_comes_from_its_snapshot_of_the_locks_day(tmp_path: Path) -> None:
    lock = tmp_path / "base.lock"
    libc6 = base.Package("arm64", "libc6", "1", hashlib.sha256(SNAPSHOT.encode()).hexdigest())
    lock.write_text(base.written_lock([libc6], "20261123T190000Z"))
    assert base.read_lock(lock) == [libc6]
    fetched = base.Archive(tmp_path / "cache").fetch(base.read_lock(lock), base.made_at(lock))
    assert fetched == {libc6.sha256: SNAPSHOT.encode()}


@pytest.mark.usefixtures("apt_get")
def test_package_that_no_archive_has_is_named_with_what_to_do(tmp_path: Path) -> None:
    libc6 = base.Package("arm64", "libc6", "1", "0" * 64)
    with pytest.raises(
        LookupError, match=r"not to be had: .*libc6.*was not found.*make image ARGS=--lock.*KAI_DEBIAN_MIRROR"
    ):
        base.Archive(tmp_path / "cache").fetch([libc6])
