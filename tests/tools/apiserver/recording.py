"""Compare answers with recorded ones: what a server makes up must correspond, everything else must be equal.

Uids, resourceVersions and generated names differ from run to run, but not freely: each recorded one stands for one of
ours throughout, and resourceVersions keep their order. Times that the server sets only have to be times.
"""

import base64
import json
import re
from dataclasses import dataclass, field
from typing import Any

_SERVER_TIMES = {"creationTimestamp", "deletionTimestamp", "time"}
_CLIENT_TIMES = {"2026-11-21T00:00:00Z", "2026-11-21T00:00:00.000000Z"}
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_AGE = re.compile(r"\d+s")


@dataclass
class Correspondence:
    """The counterparts of names, learnt while comparing."""

    uids: dict[str, str] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)

    def translate(self, text: str) -> str:
        """A recorded request or message in terms of this run."""
        for table in (self.tokens, self.uids, self.names):
            for theirs, ours in table.items():
                text = text.replace(theirs, ours)
        return re.sub(r"(?<=resourceVersion=)\d+", lambda m: str(self.versions.get(int(m[0]), int(m[0]))), text)

    def differences(self, theirs: Any, ours: Any, path: str = "") -> list[str]:
        """The places where `ours` differs from the recording."""
        key = path.rpartition(".")[2]
        if isinstance(theirs, dict) and isinstance(ours, dict):
            self._learn_name(theirs, ours)
            different = [f"{path}.{name}: missing, recorded {theirs[name]!r}" for name in theirs if name not in ours]
            different += [f"{path}.{name}: not recorded, ours is {ours[name]!r}" for name in ours if name not in theirs]
            for name in theirs.keys() & ours.keys():
                different += self.differences(theirs[name], ours[name], f"{path}.{name}")
            return different
        if isinstance(theirs, list) and isinstance(ours, list):
            if len(theirs) != len(ours):
                return [f"{path}: {len(ours)} elements, recorded {len(theirs)}"]
            return [
                difference
                for index, (their, our) in enumerate(zip(theirs, ours, strict=True))
                for difference in self.differences(their, our, f"{path}[{index}]")
            ]
        if key == "uid" and theirs != "admin":
            return self._same(self.uids, theirs, ours, path)
        if key == "resourceVersion":
            return self._version(theirs, ours, path)
        if key == "continue":
            return self._token(theirs, ours, path)
        if self._is_server_time(key, theirs):
            return [] if _TIME.fullmatch(ours or "") else [f"{path}: {ours!r} is no time"]
        if isinstance(theirs, str) and isinstance(ours, str):
            if key in ("message", "name") or path.endswith("]"):
                theirs = self._translate_message(theirs)
            if path.startswith(".rows") and _AGE.fullmatch(theirs) and _AGE.fullmatch(ours):
                return []
        return [] if theirs == ours and type(theirs) is type(ours) else [f"{path}: {ours!r}, recorded {theirs!r}"]

    @staticmethod
    def _is_server_time(key: str, theirs: Any) -> bool:
        if not isinstance(theirs, str) or theirs in _CLIENT_TIMES:
            return False
        return key in _SERVER_TIMES or (key == "lastTransitionTime" and bool(_TIME.fullmatch(theirs)))

    def _learn_name(self, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
        base = theirs.get("generateName")
        if base and "name" in theirs and str(ours.get("name", "")).startswith(base):
            self.names.setdefault(theirs["name"], ours["name"])

    def _translate_message(self, text: str) -> str:
        text = self.translate(text)
        return re.sub(r"(?<=current: )\d+", lambda m: str(self.versions[int(m[0])]), text)

    def _same(self, table: dict[str, str], theirs: str, ours: str, path: str) -> list[str]:
        counterpart = table.setdefault(theirs, ours)
        return [] if counterpart == ours else [f"{path}: {ours!r}, but {theirs!r} was {counterpart!r} before"]

    def _version(self, theirs: str, ours: str, path: str) -> list[str]:
        recorded, actual = int(theirs), int(ours)
        for other, other_actual in self.versions.items():
            if (other < recorded and other_actual > actual) or (other > recorded and other_actual < actual):
                return [f"{path}: {actual} for {recorded} is out of order: {other} was {other_actual}"]
        other_actual = self.versions.setdefault(recorded, actual)
        return [] if other_actual == actual else [f"{path}: {actual}, but {recorded} was {other_actual} before"]

    def _token(self, theirs: str, ours: str, path: str) -> list[str]:
        self.tokens[theirs] = ours
        recorded, actual = decode_token(theirs), decode_token(ours)
        if recorded["rv"] > 0:
            different = self._version(str(recorded.pop("rv")), str(actual.pop("rv")), f"{path}.rv")
        else:
            different = []
        recorded["start"] = self.translate(recorded["start"])
        return different + ([] if recorded == actual else [f"{path}: {actual}, recorded {recorded}"])


def decode_token(token: str) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    return decoded


def without_managed_fields(value: Any) -> Any:
    """The recording leaves `managedFields` out but for server-side apply."""
    if isinstance(value, dict):
        return {key: without_managed_fields(item) for key, item in value.items() if key != "managedFields"}
    if isinstance(value, list):
        return [without_managed_fields(item) for item in value]
    return value


def subset_differences(ours: Any, theirs: Any, path: str = "") -> list[str]:
    """The places where a part of ours is missing in the recording, which may have more."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        different = [f"{path}.{name}: not recorded" for name in ours if name not in theirs]
        for name in ours.keys() & theirs.keys():
            different += subset_differences(ours[name], theirs[name], f"{path}.{name}")
        return different
    if isinstance(ours, list) and isinstance(theirs, list) and ours and isinstance(ours[0], dict):
        recorded = {_identity(item): item for item in theirs}
        different = []
        for item in ours:
            identity = _identity(item)
            if identity not in recorded:
                different.append(f"{path}[{identity}]: not recorded")
            else:
                different += subset_differences(item, recorded[identity], f"{path}[{identity}]")
        return different
    return [] if ours == theirs else [f"{path}: {ours!r}, recorded {theirs!r}"]


def _identity(item: dict[str, Any]) -> str:
    for key in ("name", "resource", "subresource", "version", "groupVersion"):
        if key in item:
            return str(item[key])
    return str(item.get("metadata", {}).get("name", ""))
