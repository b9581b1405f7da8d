"""`kai-apiserver`: the simulated API server as a process."""

import gc

from kaicore.errors import ConfigurationError
from kaicore.runtime.service import ServiceContext, run_service

from kai_apiserver.server import ApiServer
from kai_apiserver.settings import ApiServerSettings


async def serve(context: ServiceContext, settings: ApiServerSettings) -> None:
    """Serve until the process is told to stop.

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


def main() -> int:
    """Run the process; return its exit code."""
    return run_service("apiserver", ApiServerSettings, serve, serve_health=False)


if __name__ == "__main__":
    raise SystemExit(main())
