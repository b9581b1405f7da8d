"""`kai-apiserver`: the simulated API server as a process, with its settings."""

import gc
from pathlib import Path

from kaicore.errors import ConfigurationError
from kaicore.runtime.service import Service, ServiceContext, ServiceSettings
from pydantic import Field

from kai_apiserver.server import ApiServer, ApiServerOptions


class ApiServerSettings(ApiServerOptions, ServiceSettings):
    """A simulated Kubernetes API server; see docs/reference/simulator.md."""

    https: bool = Field(True, description="have a TLS listener, which kubectl needs")
    kubeconfig_out: Path | None = Field(None, description="write a kubeconfig for kubectl (HTTPS) here")
    http_kubeconfig_out: Path | None = Field(None, description="write a kubeconfig over plain HTTP here")


async def serve(context: ServiceContext, settings: ApiServerSettings) -> None:
    """Serve until the process is asked to stop.

    Raises ConfigurationError: a kubeconfig for kubectl is wanted without the TLS listener that it needs.
    """
    if settings.kubeconfig_out is not None and not settings.https:
        raise ConfigurationError("kubeconfig-out: kubectl sends no token over plain HTTP, and --no-https is set")
    async with ApiServer(settings) as server:
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
