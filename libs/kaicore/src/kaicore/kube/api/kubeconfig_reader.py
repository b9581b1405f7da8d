"""kubernetes-asyncio's reader of kubeconfigs, without its client.

Its packages import a thousand models of Kubernetes' objects with whatever is wanted of them: a second of CPU and 66 MB.
The reader needs one class of the client, `Configuration`. So it is imported below packages that import nothing, which
are taken away again: who imports `kubernetes_asyncio` itself gets all of it.
"""

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

_PACKAGE = "kubernetes_asyncio"
_CLIENT = f"{_PACKAGE}.client"


def _bare(name: str, path: list[str]) -> ModuleType:
    """Return a package with these folders that has imported nothing."""
    package = ModuleType(name)
    package.__path__ = path
    return package


def _read_bare() -> tuple[Any, Any]:
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"No module named {_PACKAGE!r}", name=_PACKAGE)
    folders = list(spec.submodule_search_locations)
    others = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == _PACKAGE}
    for name in others:
        del sys.modules[name]
    client: Any = _bare(_CLIENT, [f"{folder}/client" for folder in folders])
    sys.modules |= {_PACKAGE: _bare(_PACKAGE, folders), _CLIENT: client}
    try:
        client.Configuration = importlib.import_module(f"{_CLIENT}.configuration").Configuration
        # The reader names it as the type of what it is not asked for here.
        client.ApiClient = object
        return client.Configuration, importlib.import_module(f"{_PACKAGE}.config")
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == _PACKAGE]:
            del sys.modules[name]
        sys.modules |= others


#: The class of what is read, and the module with `load_kube_config` and `ConfigException`.
Configuration, config = _read_bare()
