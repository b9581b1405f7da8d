"""`kai-apiserver`: the simulated API server as a process, with its settings."""

import gc
from pathlib import Path

from kaicore.errors import ConfigurationError
from kaicore.runtime.service import Service, ServiceContext, ServiceSettings
from pydantic import Field

from kai_apiserver.server import ApiServer, ApiServerOptions, ControllerOptions


class ApiServerSettings(ServiceSettings):
    """A simulated Kubernetes API server; see docs/reference/simulator.md."""

    http_host: str = Field("127.0.0.1", description="address of both listeners")
    http_port: int = Field(0, ge=0, le=65535, description="port of the plain listener; 0: any")
    http_fd: int | None = Field(None, ge=3, description="descriptor of a socket that is the plain listener, instead")
    https: bool = Field(True, description="have a TLS listener, which kubectl needs")
    https_port: int = Field(0, ge=0, le=65535, description="port of the TLS listener; 0: any")
    advertise_host: str = Field(
        "", description="name or address in kubeconfigs and in the certificate; default: that of the listeners"
    )
    data_dir: Path | None = Field(None, description="where everything is kept; without it, in memory")
    sync: bool = Field(False, description="wait for the disk on every write")
    kubeconfig_out: Path | None = Field(None, description="write a kubeconfig for kubectl (HTTPS) here")
    http_kubeconfig_out: Path | None = Field(None, description="write a kubeconfig over plain HTTP here")
    history: int = Field(50_000, ge=1, description="events that each resource remembers for watches")
    bookmark_s: float = Field(60.0, gt=0, description="seconds between bookmarks on a watch")
    controllers: bool = Field(True, description="run the controllers")
    default_scheduler: bool = Field(False, description="schedule pods of default-scheduler")
    demonstration: bool = Field(
        False, description="have the CRDs of PodGroups, queues and batch work, and a namespace for first tries"
    )
    job_backoff_s: float = Field(1.0, gt=0, description="seconds until a Job's first failed pod is replaced")
    node_grace_s: float = Field(40.0, ge=0, description="seconds of silence that make a node unreachable; 0: never")

    event_ttl_s: float = Field(3600.0, gt=0, description="seconds after which an event is forgotten")

    @property
    def options(self) -> ApiServerOptions:
        """The server that these settings ask for."""
        controllers = ControllerOptions(
            default_scheduler=self.default_scheduler,
            job_backoff_s=self.job_backoff_s,
            node_grace_s=self.node_grace_s,
            event_ttl_s=self.event_ttl_s,
        )
        return ApiServerOptions(
            host=self.http_host,
            advertise_host=self.advertise_host,
            http_port=self.http_port,
            http_fd=self.http_fd,
            https_port=self.https_port if self.https else None,
            data_dir=self.data_dir,
            sync=self.sync,
            history=self.history,
            bookmark_s=self.bookmark_s,
            demonstration=self.demonstration,
            controllers=controllers if self.controllers else None,
        )


async def serve(context: ServiceContext, settings: ApiServerSettings) -> None:
    """Serve until the process is asked to stop.

    Raises:
        ConfigurationError: a kubeconfig for kubectl is wanted without the TLS listener that it needs.
    """
    if settings.kubeconfig_out is not None and not settings.https:
        raise ConfigurationError("kubeconfig-out: kubectl sends no token over plain HTTP, and --no-https is set")
    async with ApiServer(settings.options) as server:
        gc.collect()
        gc.freeze()
        if settings.kubeconfig_out is not None:
            server.write_kubeconfig(settings.kubeconfig_out)
        if settings.http_kubeconfig_out is not None:
            server.write_http_kubeconfig(settings.http_kubeconfig_out)
        objects = sum(len(collection) for collection in server.store.collections)
        context.log.info(
            "API server listening",
            http=server.http_url,
            https=server.https_url,
            resource_version=server.store.rv,
            objects=objects,
        )
        await context.stopping.wait()


SERVICE = Service("apiserver", ApiServerSettings, serve, serve_health=False)
main = SERVICE.main

if __name__ == "__main__":
    main()
