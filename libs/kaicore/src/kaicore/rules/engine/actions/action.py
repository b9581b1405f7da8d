"""The base of all actions of a cycle."""

from abc import ABC, abstractmethod

from kaicore.rules.engine.session.session import Session


class CycleAction(ABC):
    """One action of a cycle, made for one session and run once."""

    def __init__(self, session: Session) -> None:
        self.session = session

    @abstractmethod
    def run(self) -> None:
        """Decide what the action can decide now, and leave reasons with the groups that it can do nothing for."""
