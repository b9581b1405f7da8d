"""Start and stop the controllers."""

from dataclasses import dataclass

from kai_simulator.apiserver.rest.backend import Backend


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerOptions:
    """x"""


class Controllers:
    """x"""

    def __init__(self, backend: Backend, options: ControllerOptions) -> None: ...
    def start(self) -> None: ...
    async def stop(self) -> None: ...
