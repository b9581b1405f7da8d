"""The two kinds of patch that know nothing of types."""

from copy import deepcopy
from typing import Any

import jsonpatch

from kai_apiserver.errors import StatusError, bad_request
from kai_apiserver.objects import Object


def apply_json_patch(obj: Object, patch: Any) -> Object:
    """Apply an RFC 6902 patch.

    Raises:
        StatusError: 400 if it is no patch, 422 if it does not fit the object or a `test` fails.
    """
    if not isinstance(patch, list):
        raise bad_request("json: cannot unmarshal object into Go value of type jsonpatch.Patch")
    try:
        patched = jsonpatch.JsonPatch(patch).apply(obj)
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException, TypeError) as error:
        raise _does_not_fit(error) from error
    if not isinstance(patched, dict):
        raise bad_request("the patch replaces the object by something else")
    return patched


def _does_not_fit(error: Exception) -> StatusError:
    return StatusError(
        422,
        "Invalid",
        "the server rejected our request due to an error in our request",
        details={"causes": [{"message": str(error)}]},
    )


def merge_patch(target: Any, patch: Any) -> Any:
    """Apply an RFC 7386 patch; neither argument is changed."""
    if not isinstance(patch, dict):
        return deepcopy(patch)
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged
