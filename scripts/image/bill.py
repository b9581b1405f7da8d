"""Bills of an image: a CycloneDX bill of materials and an in-toto statement of provenance.

Neither is signed: nobody here has a key to sign with. Both hold no time of day and no random number, so that two
builds give the same.
"""

import json
from typing import Any
from uuid import UUID, uuid5

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import DisjunctiveLicense
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from scripts.image.base import DISTRIBUTION, Package
from scripts.image.layers import digest
from scripts.image.wheels import Wheel

BILL_TYPE = "application/vnd.cyclonedx+json"
PROVENANCE_TYPE = "application/vnd.in-toto+json"
#: Numbers of bills are derived from what they are of.
_NAMESPACE = UUID("6f1b2ac4-9c0e-5d10-8a51-6b61692d6c64")

Json = dict[str, Any]


def bill(version: str, architecture: str, packages: list[Package], wheels: list[Wheel]) -> bytes:
    """Return the CycloneDX document of one architecture's image."""
    image = Component(
        name="kai-ledger", version=version, type=ComponentType.CONTAINER, bom_ref=f"kai-ledger-{architecture}"
    )
    bom = Bom(metadata=BomMetaData(component=image), components=[*map(_debian, packages), *map(_wheel, wheels)])
    bom.register_dependency(image, bom.components)
    document = json.loads(JsonV1Dot6(bom).output_as_string())
    del document["metadata"]["timestamp"]
    contents = json.dumps(document["components"], sort_keys=True)
    document["serialNumber"] = f"urn:uuid:{uuid5(_NAMESPACE, contents)}"
    return json.dumps(document, sort_keys=True, indent=1).encode()


def _debian(package: Package) -> Component:
    qualifiers = {"arch": package.architecture, "distro": DISTRIBUTION}
    purl = PackageURL("deb", "debian", package.name, package.version, qualifiers)
    hashes = [HashType(alg=HashAlgorithm.SHA_256, content=package.sha256)]
    return Component(name=package.name, version=package.version, purl=purl, bom_ref=str(purl), hashes=hashes)


def _wheel(wheel: Wheel) -> Component:
    purl = PackageURL("pypi", None, wheel.name.lower().replace("_", "-"), wheel.version)
    sha256 = digest(wheel.path.read_bytes()).removeprefix("sha256:")
    licences = [DisjunctiveLicense(name=wheel.licence)] if wheel.licence else []
    return Component(
        name=wheel.name, version=wheel.version, purl=purl, bom_ref=str(purl), licenses=licences,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=sha256)],
    )  # fmt: skip


def provenance(
    subject: str, revision: str, epoch: int, packages: list[Package], wheels: dict[str, list[Wheel]]
) -> bytes:
    """Return the statement of how an image index came to be.

    Args:
        subject: its digest.
        revision: the commit that it was built from; "" where that is not known.
        epoch: the time that its files have.
        packages: of the base, of all architectures.
        wheels: by architecture.
    """
    materials: dict[str, Json] = {}
    for package in packages:
        name = f"pkg:deb/debian/{package.name}@{package.version}?arch={package.architecture}"
        materials[name] = {"uri": name, "digest": {"sha256": package.sha256}}
    for wheel in (wheel for of_one in wheels.values() for wheel in of_one):
        sha256 = digest(wheel.path.read_bytes()).removeprefix("sha256:")
        materials[wheel.path.name] = {
            "uri": f"pkg:pypi/{wheel.name.lower().replace('_', '-')}@{wheel.version}?file_name={wheel.path.name}",
            "digest": {"sha256": sha256},
        }
    if revision:
        materials[""] = {"uri": "git+kai-ledger", "digest": {"gitCommit": revision}}
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": "kai-ledger", "digest": {"sha256": subject.removeprefix("sha256:")}}],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "https://kai-ledger/build/oci-layout/v1",
                "externalParameters": {"revision": revision, "sourceDateEpoch": epoch, "platforms": sorted(wheels)},
                "resolvedDependencies": [materials[name] for name in sorted(materials)],
            },
            # Whoever ran `make image`: the statement is not signed, and proves nothing by itself.
            "runDetails": {"builder": {"id": "https://kai-ledger/make-image/unsigned"}},
        },
    }
    return json.dumps(statement, sort_keys=True, indent=1).encode()
