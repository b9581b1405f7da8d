"""Validation of `metadata`, the same for every kind."""

from dataclasses import replace

from kai_apiserver.errors import FieldError
from kai_apiserver.objects import (
    DNS_LABEL,
    DNS_SUBDOMAIN,
    Object,
    is_label_value,
    is_qualified_name,
)

_BAD_SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
BAD_LABEL_NAME = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_BAD_QUALIFIED = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_BAD_LABEL_VALUE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)

#: Collections with single DNS labels as names, and those with nearly any names.
_LABEL_NAMED = frozenset({"namespaces", "services"})
_FREELY_NAMED = frozenset(
    f"{plural}.rbac.authorization.k8s.io" for plural in ("clusterroles", "clusterrolebindings", "roles", "rolebindings")
)
_MAX_ANNOTATIONS_BYTES = 256 * 1024


def validate_name(name: str, field: str, storage: str = "") -> list[FieldError]:
    """The problems of a name."""
    if storage in _FREELY_NAMED:
        if name in (".", ".."):
            return [FieldError.invalid(field, name, f"may not be '{name}'")]
        return [FieldError.invalid(field, name, f"may not contain '{char}'") for char in "/%" if char in name]
    if storage in _LABEL_NAMED:
        if len(name) <= 63 and DNS_LABEL.fullmatch(name):
            return []
        return [FieldError.invalid(field, name, BAD_LABEL_NAME)]
    if len(name) > 253:
        return [FieldError.invalid(field, name, "must be no more than 253 characters")]
    return [] if DNS_SUBDOMAIN.fullmatch(name) else [FieldError.invalid(field, name, _BAD_SUBDOMAIN)]


def validate_generate_name(base: str, storage: str = "") -> list[FieldError]:
    """The problems of a `generateName`: those of a name, except one `-` at its end.

    Source: `k8s.io/apimachinery/pkg/api/validation/generic.go` (`maskTrailingDash`), Kubernetes 1.37.
    """
    masked = f"{base[:-2]}a" if len(base) > 1 and base.endswith("-") else base
    errors = validate_name(masked, "metadata.generateName", storage) if base else []
    return [replace(error, value=base) for error in errors]


def validate_labels(labels: Object | None, field: str) -> list[FieldError]:
    """The problems of labels, or of a map used like labels."""
    errors = []
    for key, value in (labels or {}).items():
        if not is_qualified_name(key):
            errors.append(FieldError.invalid(field, key, _BAD_QUALIFIED))
        if not is_label_value(value):
            errors.append(FieldError.invalid(field, value, _BAD_LABEL_VALUE))
    return errors


def validate_metadata(metadata: Object, storage: str) -> list[FieldError]:
    """The problems of an object's metadata."""
    errors = validate_name(metadata["name"], "metadata.name", storage)
    errors += validate_labels(metadata.get("labels"), "metadata.labels")
    annotations = metadata.get("annotations") or {}
    errors += [
        FieldError.invalid("metadata.annotations", key, _BAD_QUALIFIED)
        for key in annotations
        if not is_qualified_name(key.lower())
    ]
    if sum(len(key) + len(value) for key, value in annotations.items()) > _MAX_ANNOTATIONS_BYTES:
        errors.append(
            FieldError(
                "FieldValueTooLong",
                "metadata.annotations",
                detail=f"may not be more than {_MAX_ANNOTATIONS_BYTES} bytes",
            )
        )
    controllers = 0
    for index, owner in enumerate(metadata.get("ownerReferences") or ()):
        field = f"metadata.ownerReferences[{index}]"
        errors += [
            FieldError.invalid(f"{field}.{part}", "", "must not be empty")
            for part in ("apiVersion", "kind", "name", "uid")
            if not owner.get(part)
        ]
        controllers += owner.get("controller") is True
    if controllers > 1:
        errors.append(
            FieldError.invalid(
                "metadata.ownerReferences",
                metadata["ownerReferences"],
                "Only one reference can have Controller set to true",
            )
        )
    errors += [
        FieldError.invalid("metadata.finalizers", finalizer, _BAD_QUALIFIED)
        for finalizer in metadata.get("finalizers") or ()
        if not is_qualified_name(finalizer)
    ]
    return errors


def validate_metadata_update(new: Object, old: Object) -> list[FieldError]:
    """The problems of a change of metadata."""
    if not old.get("deletionTimestamp"):
        return []
    added = [name for name in new.get("finalizers") or () if name not in (old.get("finalizers") or ())]
    if not added:
        return []
    listed = ", ".join(f'"{name}"' for name in added)
    return [
        FieldError.forbidden(
            "metadata.finalizers",
            f"no new finalizers can be added if the object is being deleted, found new finalizers []string{{{listed}}}",
        )
    ]
