"""Answers questions about manifests to submit, from the states that an inquiry keeps."""

from collections.abc import Sequence

import msgspec

from kaicore.analysis.trial.simulation import Located
from kaicore.analysis.trial.submission.answers import SubmitAnswer
from kaicore.analysis.trial.submission.start_forecasts import StartForecasts
from kaicore.analysis.trial.submission.starts import checked_group
from kaicore.analysis.trial.submission.submit import submit
from kaicore.errors import InvalidObject

#: Most objects of one question.
MOST_OBJECTS = 1000


class Submissions(StartForecasts):
    """One for a process, so that what was read once is kept."""

    async def submit(self, cluster: str, objects: Sequence[Located], *, at: str = "") -> SubmitAnswer:
        """Say what would become of manifests; see `kaicore.analysis.trial.submission.submit`.

        Args:
            cluster: the name of the cluster.
            objects: in any order, with apiVersion and kind.
            at: as of which moment (`kaicore.analysis.replay.moments`); empty for now. In the past the time is that of
                the last event.

        Raises:
            InvalidObject: there are no objects, or too many.
            UnknownMoment: there is no such moment.
            EventsRetired: its events are gone.
            LogUnavailable: the log does not answer.
            TooManyQuestions: about this cluster wait already.
        """
        if not 0 < len(objects) <= MOST_OBJECTS:
            raise InvalidObject("manifests", "objects", len(objects), f"must be from 1 to {MOST_OBJECTS}")
        answer = await self.of_state(
            cluster, at, lambda copied, history, now: submit(copied, objects, history, now=now)
        )
        forecast = any(group.start is not None for group in answer.groups)
        calibration = await self.calibration(cluster) if forecast else None
        groups = [checked_group(group, calibration) for group in answer.groups]
        return msgspec.structs.replace(answer, groups=groups, calibration=calibration)
