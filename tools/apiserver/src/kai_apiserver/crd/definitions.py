"""CustomResourceDefinitions: their own defaults, validation and conditions, and the resources they make."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kai_apiserver.crd.schema_validation import validate_schema
from kai_apiserver.crd.structural import Schema, apply_defaults, drop_nulls, prune, walk
from kai_apiserver.errors import FieldError
from kai_apiserver.kinds.rules import Cluster
from kai_apiserver.objects import Object, timestamp
from kai_apiserver.resources import ResourceType, SelectableField, Subresource

DEFINITIONS = "customresourcedefinitions.apiextensions.k8s.io"

#: What an API server says of the rules (`x-kubernetes-validations`) of an object that the schema refuses already.
_UNCHECKED = FieldError(
    "FieldValueInvalid",
    "<nil>",
    detail="some validation rules were not checked because the object was invalid; correct the existing errors to "
    "complete validation",
)

_STATUS_VERBS = ("get", "patch", "update")


@dataclass(frozen=True, slots=True)
class Scale:
    """Where a custom resource keeps its replica counts: paths of field names."""

    spec_replicas: tuple[str, ...]
    status_replicas: tuple[str, ...]
    label_selector: tuple[str, ...]


class CustomVersion:
    """What a served version of a custom resource does to objects.

    Attributes:
        schema: its structural schema.
        columns: `additionalPrinterColumns`.
        scale: for the scale subresource, or None.
        rules: how many `x-kubernetes-validations` it has; they are not evaluated.
    """

    def __init__(self, version: Object) -> None:
        self.schema: Schema = (version.get("schema") or {}).get("openAPIV3Schema") or {
            "type": "object",
            "x-kubernetes-preserve-unknown-fields": True,
        }
        self.rules = sum(len(below.get("x-kubernetes-validations") or ()) for below in walk(self.schema))
        self.columns: list[Object] = list(version.get("additionalPrinterColumns") or ())
        given = (version.get("subresources") or {}).get("scale")
        self.scale = (
            Scale(
                _path(given["specReplicasPath"]),
                _path(given["statusReplicasPath"]),
                _path(given.get("labelSelectorPath", "")),
            )
            if given
            else None
        )

    def read(self, obj: Object) -> list[str]:
        """Prune, drop meaningless nulls and fill in defaults, in place; return the paths that were pruned."""
        dropped = prune(obj, self.schema)
        drop_nulls(obj, self.schema)
        apply_defaults(obj, self.schema)
        return dropped

    def validate(self, obj: Object) -> list[FieldError]:
        """What is wrong with an object."""
        errors = validate_schema(obj, self.schema)
        return [*errors, _UNCHECKED] if errors and self.rules else errors


def _path(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(".")))


def default_definition(definition: Object) -> None:
    """Fill in what a definition leaves out."""
    names = definition["spec"].get("names") or {}
    if names.get("kind"):
        names.setdefault("singular", names["kind"].lower())
        names.setdefault("listKind", f"{names['kind']}List")
    definition["spec"].setdefault("conversion", {"strategy": "None"})


def admit_definition(definition: Object, cluster: Cluster) -> None:
    """A new definition is not established yet."""
    del cluster
    stored = [version["name"] for version in definition["spec"].get("versions") or () if version.get("storage")]
    definition["status"] = {
        "conditions": None,
        "acceptedNames": {"plural": "", "kind": ""},
        "storedVersions": stored,
    }


def validate_definition(definition: Object) -> list[FieldError]:
    """What is wrong with a definition, as far as this server depends on it."""
    spec, errors = definition["spec"], []
    names = spec.get("names") or {}
    wanted = f"{names.get('plural')}.{spec.get('group')}"
    if definition["metadata"]["name"] != wanted:
        errors.append(
            FieldError(
                "FieldValueInvalid",
                "metadata.name",
                detail='must be spec.names.plural+"."+spec.group',
                value=definition["metadata"]["name"],
            )
        )
    errors += [
        FieldError("FieldValueRequired", f"spec.names.{part}") for part in ("plural", "kind") if not names.get(part)
    ]
    if spec.get("scope") not in ("Namespaced", "Cluster"):
        errors.append(
            FieldError(
                "FieldValueNotSupported", "spec.scope", value=spec.get("scope", ""), supported=("Cluster", "Namespaced")
            )
        )
    versions = spec.get("versions") or []
    if sum(bool(version.get("storage")) for version in versions) != 1:
        errors.append(
            FieldError(
                "FieldValueInvalid",
                "spec.versions",
                detail="must have exactly one version marked as storage version",
                value=versions,
            )
        )
    for index, version in enumerate(versions):
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        field = f"spec.versions[{index}].schema.openAPIV3Schema"
        if schema is None:
            errors.append(FieldError("FieldValueRequired", field, detail="schemas are required"))
        elif schema.get("type") != "object" and not schema.get("x-kubernetes-preserve-unknown-fields"):
            errors.append(FieldError("FieldValueRequired", f"{field}.type", detail="must not be empty at the root"))
    return errors


def reservations(definition: Object) -> list[str]:
    """What a definition asks for that this server accepts and does not do."""
    sentences = []
    if (definition["spec"].get("conversion") or {}).get("strategy") == "Webhook":
        sentences.append("conversion webhooks are not called: between versions only apiVersion changes")
    sentences += [
        f"x-kubernetes-validations are not evaluated: {resource.custom.rules} of version {resource.version}"
        for resource in resources_of(definition)
        if resource.custom.rules
    ]
    return sentences


def establish(definition: Object, now: datetime) -> None:
    """Accept the names and mark the definition as established, in place."""
    spec, moment = definition["spec"], timestamp(now)
    definition["status"]["acceptedNames"] = dict(spec["names"])
    stored = definition["status"].get("storedVersions") or []
    fresh = [
        version["name"] for version in spec["versions"] if version.get("storage") and version["name"] not in stored
    ]
    definition["status"]["storedVersions"] = [*stored, *fresh]
    if not definition["status"].get("conditions"):
        definition["status"]["conditions"] = [
            {
                "type": "NamesAccepted",
                "status": "True",
                "lastTransitionTime": moment,
                "reason": "NoConflicts",
                "message": "no conflicts found",
            },
            {
                "type": "Established",
                "status": "True",
                "lastTransitionTime": moment,
                "reason": "InitialNamesAccepted",
                "message": "the initial names have been accepted",
            },
        ]


def resources_of(definition: Object) -> list[ResourceType]:
    """The resource types that a definition makes, one per served version, the stored version first."""
    spec: dict[str, Any] = definition["spec"]
    names = spec["names"]
    versions = sorted(
        (version for version in spec["versions"] if version.get("served")),
        key=lambda version: not version.get("storage"),
    )
    return [
        ResourceType(
            group=spec["group"],
            version=version["name"],
            plural=names["plural"],
            singular=names.get("singular") or names["kind"].lower(),
            kind=names["kind"],
            list_kind=names.get("listKind", ""),
            namespaced=spec["scope"] == "Namespaced",
            short_names=tuple(names.get("shortNames") or ()),
            categories=tuple(names.get("categories") or ()),
            subresources=_subresources(version, names["kind"]),
            generation=True,
            selectable=tuple(
                SelectableField(item["jsonPath"].lstrip("."), _path(item["jsonPath"]))
                for item in version.get("selectableFields") or ()
            ),
            custom=CustomVersion(version),
        )
        for version in versions
    ]


def _subresources(version: Object, kind: str) -> tuple[Subresource, ...]:
    given = version.get("subresources") or {}
    subresources = []
    if "scale" in given:
        subresources.append(Subresource("scale", "Scale", _STATUS_VERBS, "autoscaling", "v1"))
    if "status" in given:
        subresources.append(Subresource("status", kind, _STATUS_VERBS))
    return tuple(subresources)
