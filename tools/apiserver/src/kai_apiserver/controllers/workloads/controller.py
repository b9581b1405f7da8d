"""One controller for every kind of batch work that has no operator here; `workload_kinds` is its table.

The names of an object's children follow from its own name. So a missing child is found by its name, and after a kill
between two writes nothing is made twice.
"""

from kaicore.errors import InvalidObject

from kai_apiserver.controllers.reconciling import Backoffs, Controller, has_failed
from kai_apiserver.controllers.workloads.kinds import KINDS
from kai_apiserver.controllers.workloads.view import Plan, View
from kai_apiserver.objects import Object
from kai_apiserver.rest.backend import CONTROLLER, Backend, Operation, Target, shown
from kai_apiserver.rest.deletion import DeleteOptions, delete
from kai_apiserver.rest.writing import commit, create
from kai_apiserver.store import Collection, Event, EventType, Stored

PODS = "pods"

#: Collection and key of an object.
Place = tuple[str, str]

#: Children per second of waiting before their owner is looked at again; changes gather meanwhile.
_CHILDREN_PER_SECOND = 5000.0
_LONGEST_GATHERING_S = 1.0
#: Seconds until a name is tried again that another object still has, such as one of an owner that is gone.
_NAME_TAKEN_S = 0.5


class WorkloadController(Controller[Place]):
    """Runs every kind of `workload_kinds.KINDS`, as far as the server has its definition."""

    name = "workload-controller"

    def __init__(self, backend: Backend, *, base_backoff_s: float) -> None:
        super().__init__(backend)
        self._backoffs = Backoffs(base_backoff_s)
        self._places: dict[str, Place] = {}  # of what owns something or may, by uid
        self._children: dict[str, dict[Place, None]] = {}  # by uid of the owner

    def begin(self) -> None:
        """Look at every object of the kinds, and at what they own."""
        for collection in self.backend.store.collections:
            for stored in collection:
                self._seen(collection.resource.storage, stored)
        self.backend.store.subscribe(self._changed)

    def _seen(self, storage: str, stored: Stored) -> None:
        place = storage, stored.key
        if storage in KINDS:
            self._places[stored.uid] = place
            self.queue(place)
        elif stored.owners:
            self._places[stored.uid] = place
        for owner in stored.owners:
            self._children.setdefault(owner, {})[place] = None

    def _changed(self, collection: Collection, event: Event) -> None:
        stored, storage = event.stored, collection.resource.storage
        if event.type is not EventType.DELETED:
            self._seen(storage, stored)
        else:
            self._places.pop(stored.uid, None)
            self._backoffs.forget(stored.uid)
            for owner in stored.owners:
                children = self._children.get(owner, {})
                children.pop((storage, stored.key), None)
                if not children:
                    self._children.pop(owner, None)
        failed = storage == PODS and has_failed(stored, collection) and not has_failed(event.previous, collection)
        self._queue_owners(stored, failed=failed)

    def _queue_owners(self, stored: Stored, *, failed: bool = False) -> None:
        """Have all look again whom a change of a child concerns: its owners, their owners, and so on.

        Args:
            failed: whether it is a pod that has just failed.
        """
        for uid in stored.owners:
            place = self._places.get(uid)
            if place is None:
                continue
            if place[0] in KINDS:
                if failed:
                    self._backoffs.failed(uid, self.backend.now().timestamp())
                gathering = len(self._children.get(uid, ())) / _CHILDREN_PER_SECOND
                self.queue_after(place, min(gathering, _LONGEST_GATHERING_S))
            above = self.backend.store.find(*place)
            if above is not None:
                self._queue_owners(above)

    def reconcile(self, key: Place) -> float | None:
        """Make, replace and delete an object's children, and say in its status how they are."""
        stored = self.backend.store.find(*key)
        if stored is None:
            return None
        resource = self.backend.registry.of_storage(key[0])
        view = View(
            shown(stored, resource),
            self._children_of(stored.uid),
            now=self.backend.now(),
            failures=self._backoffs.count(stored.uid),
            find=self._find,
        )
        if view.owner["metadata"].get("deletionTimestamp"):
            return None
        try:
            plan = KINDS[key[0]](view)
        except InvalidObject as error:
            self._log.warning("nothing is made of it", object=str(key), why=str(error))
            return None
        again = self._carry_out(stored, view, plan)
        if plan.delete_owner:
            options = DeleteOptions(uid=stored.uid, propagation="Background")
            delete(self.backend, stored, resource=resource, options=options, operation=Operation(user=CONTROLLER))
            return None
        new = stored.decode()
        new["status"] = view.status
        self.backend.write_status(resource, new, stored)
        return min((wait for wait in (again, plan.again) if wait is not None), default=None)

    def _carry_out(self, stored: Stored, view: View, plan: Plan) -> float | None:
        """Delete and create; return seconds to wait before the rest is made."""
        for child in plan.delete:
            self._delete(child)
        for child in plan.change:
            self._change(child)
        missing = [child for child in plan.create if view.child(child["kind"], child["metadata"]["name"]) is None]
        if not missing:
            return None
        wait = self._backoffs.remaining(stored.uid, view.now.timestamp())
        if wait > 0:
            return wait
        taken = False
        for child in missing:
            resource = self.backend.registry.of_kind(child["apiVersion"], child["kind"])
            if resource is None:
                continue
            if self._find(resource.storage, view.namespace, child["metadata"]["name"]) is not None:
                taken = True
                continue
            target = Target(resource, view.namespace)
            create(self.backend, target, given=child, operation=Operation(user=CONTROLLER))
        return _NAME_TAKEN_S if taken else None

    def _delete(self, child: Object) -> None:
        resource = self.backend.registry.of_kind(child["apiVersion"], child["kind"])
        assert resource is not None, child["kind"]
        metadata = child["metadata"]
        stored = self.backend.collection(resource).get(f"{metadata['namespace']}/{metadata['name']}")
        if stored is not None and stored.uid == metadata["uid"] and not metadata.get("deletionTimestamp"):
            options = DeleteOptions(propagation="Background")
            delete(self.backend, stored, resource=resource, options=options, operation=Operation(user=CONTROLLER))

    def _change(self, child: Object) -> None:
        """Write a child's spec."""
        resource = self.backend.registry.of_kind(child["apiVersion"], child["kind"])
        assert resource is not None, child["kind"]
        target = Target(resource, child["metadata"]["namespace"], child["metadata"]["name"])
        stored = self.backend.get(target)
        new = stored.decode() | {"spec": child["spec"]}
        new["metadata"]["generation"] = new["metadata"].get("generation", 0) + 1
        commit(self.backend, target, stored=stored, new=new, operation=Operation(user=CONTROLLER))

    def _children_of(self, uid: str) -> list[Object]:
        children = []
        for place in self._children.get(uid, ()):
            stored = self.backend.store.find(*place)
            if stored is not None:
                children.append(shown(stored, self.backend.registry.of_storage(place[0])))
        return children

    def _find(self, storage: str, namespace: str, name: str) -> Object | None:
        """Return any object, with kind and apiVersion."""
        stored = self.backend.store.find(storage, f"{namespace}/{name}")
        return shown(stored, self.backend.registry.of_storage(storage)) if stored is not None else None
