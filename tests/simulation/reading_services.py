"""The services that only read, and the hub's way in: their own classes on simulated ports, HTTP without a socket."""

import asyncio

from fastapi import FastAPI
from kai_api.answering import answer_errors
from kai_api.events import make_events_router
from kai_api.live import LiveLog
from kai_api.routes import make_router
from kai_hub.main import make_app as make_hub_app
from kai_projector.main import Parts, ProjectorMetrics, follow
from kai_webhook.app import make_app as make_webhook_app
from kai_webhook.main import KnownTopologies
from kaicore.analysis.ask.projections.building import GenerationStore
from kaicore.analysis.ask.queries import Inquiry
from kaicore.analysis.trial.dispatching import HubLog
from kaicore.analysis.trial.submission.submit import Submissions
from kaicore.runtime.access.callers import HttpAccess
from kaicore.runtime.service.health import Asgi
from prometheus_client import CollectorRegistry

from tests.simulation.services import Place


async def project(place: Place, views: GenerationStore) -> None:
    """`kai-projector`, of one cluster."""
    parts = Parts(place.context, place.log, views, ProjectorMetrics(registry=CollectorRegistry()))
    parts.leads.set()
    await follow(parts, place.cluster, tried=asyncio.Event())


class Judge:
    """`kai-webhook`."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.topologies = KnownTopologies(place.cluster)
        self.app: Asgi = make_webhook_app(
            lambda: self.topologies.book, place.context.health, scheduler_name="kai-ledger"
        )

    async def run(self) -> None:
        await self.topologies.follow(self._place.log, self._place.context)


class Answers:
    """`kai-api`: events and lists."""

    def __init__(self, place: Place) -> None:
        self._inquiry = Inquiry(place.log)
        app = FastAPI()
        answer_errors(app)
        app.include_router(make_events_router(place.log, LiveLog(place.log)))
        app.include_router(make_router(self._inquiry, Submissions(self._inquiry)))
        self.app: Asgi = app

    async def run(self) -> None:
        """Keep states up to date."""
        await self._inquiry.follow()


def hub_app(place: Place) -> Asgi:
    """The routes by which dispatches are submitted to a hub."""
    return make_hub_app(HubLog(place.log), HttpAccess(anonymous="anywhere"), place.context.health)
