"""`kai-operator`: one operator as a process."""

import socket
from functools import partial
from uuid import uuid4

from kaicore.kube.api.access import configured_access
from kaicore.kube.api.client import KubeClient
from kaicore.kube.operands.names import OPERATOR
from kaicore.ledger.bus.leases import Lease
from kaicore.runtime.service import Service, ServiceContext
from kaicore.runtime.service.leadership import LEADS, Leadership

from kai_operator.carrying_out import Hands, OperatorMetrics
from kai_operator.lease_store import KubeLeaseStore
from kai_operator.operator import API, Operator, OperatorSettings, watch, what_is_given

#: The first part of the lease's name.
_ROLE = "kai"


async def serve(context: ServiceContext, settings: OperatorSettings) -> None:
    """Operate whenever this instance leads, until the process is to stop."""
    access = configured_access(settings.kubeconfig, context=settings.kube_context)
    async with KubeClient(access, user_agent=OPERATOR) as client:
        given = await what_is_given(settings, client, context)
        hands = Hands(client, settings.namespace, metrics=OperatorMetrics(), log=context.log)
        duration_s = settings.lease_ms / 1000
        store = KubeLeaseStore(client, settings.namespace)
        owner = f"{socket.gethostname()}-{uuid4().hex[:8]}"
        leadership = Leadership(
            context,
            Lease(store, _ROLE, "operator", owner=owner, duration_s=duration_s),
            duration_s=duration_s,
            notify=LEADS.labels(settings.namespace, "operator").set,
        )

        async def operate() -> None:
            operator = Operator(context, hands, given, resync_s=settings.resync_s)
            await operator.run(partial(watch, context, access, settings.namespace))

        await leadership.lead_in_turn(operate)


SERVICE = Service("operator", OperatorSettings, serve, conditions=(API,))
main = SERVICE.main

if __name__ == "__main__":
    main()
