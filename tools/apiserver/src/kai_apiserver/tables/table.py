"""Build `meta.k8s.io/v1` Tables, for built-in and custom kinds."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from kai_apiserver.objects import Object, age
from kai_apiserver.resources import ResourceType
from kai_apiserver.rest.backend import shown
from kai_apiserver.store import Stored
from kai_apiserver.tables.columns import AGE, COLUMNS, DEFAULT_COLUMNS, NAME, Column, find


def columns_of(resource: ResourceType) -> tuple[Column, ...]:
    """The columns of a resource's table."""
    if resource.custom is None:
        return COLUMNS.get(resource.storage, DEFAULT_COLUMNS)
    given = resource.custom.columns
    return (NAME, *(_custom_column(column) for column in given)) if given else (NAME, AGE)


def _custom_column(given: Object) -> Column:
    path, kind = given["jsonPath"], given["type"]

    def cell(obj: Object, now: datetime) -> Any:
        values = [value for value in find(obj, path) if value is not None]
        if kind == "date":
            return age(values[0] if values else None, now)
        if not values:
            return None
        if kind == "string":
            return " ".join(str(value) for value in values)
        return values[0]

    return Column(
        given["name"],
        cell,
        kind,
        wide=given.get("priority", 0) > 0,
        description=given.get("description") or f"Custom resource definition column (in JSONPath format): {path}",
        shape=given.get("format", ""),
    )


def partial_metadata(obj: Object) -> Object:
    """An object reduced to its metadata."""
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}


def table(
    resource: ResourceType,
    items: Iterable[Stored],
    list_metadata: Object,
    *,
    now: datetime,
    include: str = "Metadata",
    headings: bool = True,
) -> Object:
    """A Table of objects; `include` is how much of each object goes with its row: None, Metadata or Object."""
    columns = columns_of(resource)
    definitions = [
        {
            "name": column.name,
            "type": column.kind,
            "format": column.shape,
            "description": column.description,
            "priority": int(column.wide),
        }
        for column in columns
    ]
    rows = []
    for stored in items:
        stored_form = stored.decode()
        row: Object = {"cells": [column.cell(stored_form, now) for column in columns]}
        if include == "Object":
            row["object"] = shown(stored, resource)
        elif include == "Metadata":
            row["object"] = partial_metadata(stored_form)
        rows.append(row)
    built: Object = {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": list_metadata}
    if headings:
        built["columnDefinitions"] = definitions
    built["rows"] = rows
    return built
