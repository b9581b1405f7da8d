"""kopf without kubernetes-asyncio, which it imports for the sake of handlers that use its models; ours use none.

That takes a second and 37 MB. Where it was imported already, kopf gets it.
"""

import sys

_LIBRARY = "kubernetes_asyncio"
_hidden = _LIBRARY not in sys.modules
if _hidden:
    # What is None there cannot be imported: kopf takes that for a library that is not installed.
    sys.modules[_LIBRARY] = None  # type: ignore[assignment]
try:
    import kopf
except ModuleNotFoundError as error:
    if error.name != "kopf":
        raise
    sys.exit("kai-operator: kopf is not installed: pip install 'kai-ledger[operator]'")
finally:
    if _hidden:
        del sys.modules[_LIBRARY]

__all__ = ["kopf"]
