"""Bounds of what moves can reach: a linear program over what single GPUs hold (HiGHS, by columns).

A column is what one GPU holds: parts that tasks ask for, whole ones, as many as fit together. It knows the parts that
were there before, which stay or leave. The master program takes columns, fractions of them too, so that the most GPU is
held. It holds all tasks that were held, no more of a class than arrive, and no more CPU and memory than nodes have. No
more tasks leave their GPUs than may be moved; each frees no more than its own, and comes again elsewhere. So no engine
holds more from there on, even one that knows all arrivals beforehand.

A task of several GPUs is as many parts of it, each for itself: that holds more, if anything.

Where nothing is held yet, but some tasks are to start, it bounds whoever starts those, or all but so much GPU of them,
wherever. Moves add nothing to that: who knows all arrivals puts each task where it would have been moved.

By node, each holds whole parts that its own CPU and memory take, at the prices that the program finds.

What columns are paid bounds the program from above before all of them are known (Lagrange), so a bound that is given up
early is still one. Source: Desaulniers, Desrosiers and Solomon, "Column Generation" (2005).
"""

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import highspy
import numpy as np
import numpy.typing as npt
from kaicore.rules.engine.config import EngineConfig

from tests.measured.league import ours
from tests.measured.league.openb import LISTS, MILLI, Nodes, Task, arrivals, nodes, published, tasks

_Floats = npt.NDArray[np.float64]
#: Rounds at most, and how near to what columns reach a bound has to be, as a part of it.
_MOST_ROUNDS, _NEAR = 200, 2e-5
_MOST = highspy.kHighsInf
#: Seconds and thousandths within which the program of a node ends.
_NODE_S, _NODE_NEAR = 5.0, 0.05
#: What is aimed at: so many points above what FGD's authors publish.
_ABOVE = 1.5
#: By list, how much of what comes first starts, in per cent of the GPUs: about all until work is first refused.
_UNTIL = {"default": (92.0,), "multigpu50": (80.0,), "gpushare100": (86.0,), "gpuspec33": (80.0, 60.0)}
#: What a part costs that is to be held and is on no GPU, in thousandths.
_NOWHERE = -3.0 * MILLI


class Held(NamedTuple):
    """What is held.

    Attributes:
        gpus: by row and GPU, the tasks that have the GPU or a part of it.
        beside: by row, the tasks without GPUs.
    """

    gpus: Mapping[tuple[int, int], Sequence[Task]]
    beside: Mapping[int, Sequence[Task]]

    @classmethod
    def of(cls, arriving: Sequence[Task], places: Mapping[int, tuple[int, Sequence[str]]]) -> "Held":
        """Return what tasks hold.

        Args:
            places: by number of the task, its row, and the GPUs of which it has a part, by any name.
        """
        named: dict[tuple[int, str], list[Task]] = defaultdict(list)
        whole: dict[int, list[Task]] = defaultdict(list)
        beside: dict[int, list[Task]] = defaultdict(list)
        for number, (row, names) in places.items():
            task = arriving[number]
            for name in names:
                named[row, name].append(task)
            if not task.shares:
                (whole if task.gpus else beside)[row].extend([task] * max(task.gpus, 1))
        on_gpus: dict[int, list[list[Task]]] = defaultdict(list)
        for (row, _), parts in named.items():
            on_gpus[row].append(parts)
        for row, parts in whole.items():
            on_gpus[row] += [[task] for task in parts]
        return cls({(row, gpu): parts for row, held in on_gpus.items() for gpu, parts in enumerate(held)}, beside)


@dataclass(frozen=True)
class _Gpus:
    """GPUs of one place that hold alike; `holds` has classes, once for each part."""

    place: int
    holds: tuple[int, ...]
    count: int


class _Node(NamedTuple):
    """Nodes that hold alike: `room` is CPU and memory, `holds` has classes by GPU, once for each part."""

    place: int
    room: tuple[int, int]
    holds: tuple[tuple[int, ...], ...]
    beside: tuple[int, ...]


class _Filling(NamedTuple):
    """What fills up a GPU best: what is paid, by free thousandths, and the class that comes last there; -1 for none."""

    paid: list[float]
    last: list[int]


class Bound:
    """The program, for nodes that hold tasks already."""

    def __init__(
        self,
        nodes: Nodes,
        held: Held,
        may: Sequence[Task],
        *,
        starts: Sequence[Task] = (),
        refuses: float = 0.0,
    ) -> None:
        """Args:
        nodes: of the cluster.
        held: what stays; an engine may have refused any other task but those that start.
        may: all tasks that arrive, those included.
        starts: tasks besides the held ones that start, wherever.
        refuses: all but so much of their GPU, in thousandths.
        """
        self._classes = classes = sorted(set(may), key=lambda one: (one.demand, one.cpu, one.memory, one.models))
        self._numbers = {task: number for number, task in enumerate(classes)}
        self._may = Counter(may)
        self._parts = np.array([max(task.gpus, 1) for task in classes], np.float64)
        self._sizes = [task.gpu_milli for task in classes]
        self._starts = Counter(self._numbers[task] for task in starts)
        self._refuses = refuses
        columns = [one.tolist() for one in (nodes.model, nodes.gpus, nodes.cpu, nodes.memory)]
        alike = list(zip(*columns, strict=True))
        places = {kind: place for place, kind in enumerate(sorted(set(alike)))}
        self._places = len(places)
        self._model = [""] * self._places
        self._room = np.zeros((self._places, 2))
        self._beside: Counter[tuple[int, int]] = Counter()
        kinds: Counter[tuple[int, tuple[int, ...]]] = Counter()
        self._nodes: Counter[_Node] = Counter()
        for row, kind in enumerate(alike):
            place = places[kind]
            self._model[place] = str(nodes.model[row])
            self._room[place] += int(nodes.cpu[row]), int(nodes.memory[row])
            for task in held.beside.get(row, ()):
                self._beside[self._numbers[task], place] += 1
                self._room[place] -= task.cpu, task.memory
            on_gpus = [
                tuple(sorted(self._numbers[task] for task in held.gpus.get((row, gpu), ())))
                for gpu in range(int(nodes.gpus[row]))
            ]
            kinds.update((place, holds) for holds in on_gpus)
            beside = sorted(self._numbers[task] for task in held.beside.get(row, ()))
            room = int(nodes.cpu[row]), int(nodes.memory[row])
            self._nodes[_Node(place, room, tuple(sorted(on_gpus)), tuple(beside))] += 1
        self._kinds = [_Gpus(place, holds, count) for (place, holds), count in kinds.items()]
        self._allowed = [
            [number for number, task in enumerate(classes) if task.gpus and (not task.models or model in task.models)]
            for model in self._model
        ]
        #: What one part of each class asks for beside the GPU, and is worth.
        self._asks = np.array([[task.cpu, task.memory] for task in classes]) / self._parts[:, None]
        self._worth = np.array([float(size) for size in self._sizes])

    def of(self, moves: int) -> float:
        """Return the bound of GPU held with so many tasks moved at most, in thousandths."""
        solver = self._master(moves)
        best = _MOST
        first_place = len(self._classes)
        first_kind = first_place + 2 * self._places
        for number, kind in enumerate(self._kinds):
            self._add(solver, first_kind + number, kind, kind.holds, ())
        for _ in range(_MOST_ROUNDS):
            solver.run()
            value = float(solver.getInfo().objective_function_value)
            prices = np.array(solver.getSolution().row_dual)
            of_classes = prices[:first_place]
            of_refusal, of_move = np.maximum(prices[-2:], 0.0).tolist()
            of_room = np.maximum(prices[first_place:first_kind].reshape(self._places, 2), 0.0)
            found = self._outside(of_classes, of_room, of_move) + of_move * moves
            found += self._refused(of_classes, of_refusal)
            fillings: dict[int, tuple[_Floats, _Filling]] = {}
            for number, kind in enumerate(self._kinds):
                if kind.place not in fillings:
                    pays = self._worth - of_classes - self._asks @ of_room[kind.place]
                    fillings[kind.place] = pays, self._fill(kind.place, pays)
                paid, kept, added = self._best(kind, *fillings[kind.place], of_move)
                found += kind.count * paid
                if paid > float(prices[first_kind + number]) + 1e-6:
                    self._add(solver, first_kind + number, kind, kept, added)
            if found < best:
                best, self._prices = found, (of_classes, of_move)
            if best - value <= _NEAR * best:
                break
        return best

    def by_node(self, moves: int) -> float:
        """Return a lower bound by the same prices of tasks and moves: each node holds whole parts, by its own CPU.

        Minutes: each node is a program.
        """
        most = self.of(moves)
        of_classes, of_move = self._prices
        found = float(np.where(of_classes > 0, of_classes * self._most, of_classes * self._least).sum())
        found += of_move * moves
        pays = self._worth - of_classes
        useful = [self._useful(place, pays) for place in range(self._places)]
        for node, count in self._nodes.items():
            found += count * self._node(node, pays, of_move, useful[node.place])
        return min(most, found)

    def _useful(self, place: int, pays: _Floats) -> list[int]:
        """Return the classes that pay on nodes of a place, without those of which another pays more and asks less."""
        useful: list[int] = []
        without = [number for number, task in enumerate(self._classes) if not task.gpus]
        model = self._model[place]
        beside = [one for one in without if not (models := self._classes[one].models) or model in models]
        for number in sorted([*self._allowed[place], *beside], key=lambda one: -float(pays[one])):
            better = (one for one in useful if self._sizes[one] == self._sizes[number])
            if pays[number] > 0 and not any((self._asks[one] <= self._asks[number]).all() for one in better):
                useful.append(number)
        return useful

    def _node(self, node: _Node, pays: _Floats, of_move: float, useful: Sequence[int]) -> float:
        """Return what is paid at most for what a node holds."""
        solver = highspy.Highs()
        solver.silent()
        options = {"threads": 1, "time_limit": _NODE_S, "mip_abs_gap": _NODE_NEAR, "mip_rel_gap": 0.0}
        for option, value in options.items():
            solver.setOptionValue(option, value)
        solver.changeObjectiveSense(highspy.ObjSense.kMaximize)
        held = [(gpu, number) for gpu, holds in enumerate(node.holds) for number in holds]
        held += [(-1, number) for number in node.beside]
        free = np.array(node.room) - sum((self._asks[number] for _, number in held), np.zeros(2))
        left = [MILLI - sum(self._sizes[number] for number in holds) for holds in node.holds]
        for room in (*free.tolist(), *left):
            solver.addRow(-_MOST, float(room), 0, np.zeros(0, np.int32), np.zeros(0))

        def may(gpu: int, number: int, sign: float, most: float, worth: float) -> None:
            asks = {0: sign * float(self._asks[number][0]), 1: sign * float(self._asks[number][1])}
            _column(solver, worth, most, asks if gpu < 0 else {**asks, 2 + gpu: sign * self._sizes[number]})

        for gpu, number in held:
            may(gpu, number, -1.0, 1.0, -float(pays[number]) - of_move / float(self._parts[number]))
        for number in useful:
            for gpu in range(len(left)) if self._sizes[number] else (-1,):
                may(gpu, number, 1.0, MILLI // self._sizes[number] if gpu >= 0 else _MOST, float(pays[number]))
        count = solver.getNumCol()
        whole = np.array([highspy.HighsVarType.kInteger] * count)
        solver.changeColsIntegrality(count, np.arange(count, dtype=np.int32), whole)
        solver.run()
        # Of CPU-only tasks, those are paid that come or leave.
        stays = sum(float(pays[number]) for gpu, number in held if gpu >= 0)
        return stays + max(float(solver.getInfo().mip_dual_bound), 0.0)

    def _master(self, moves: int) -> highspy.Highs:
        """Return the program with rows: of classes, of CPU and memory, of GPUs, of what is refused, and of moves."""
        solver = highspy.Highs()
        solver.silent()
        solver.setOptionValue("threads", 1)
        solver.changeObjectiveSense(highspy.ObjSense.kMaximize)
        least = np.zeros(len(self._classes))
        for kind in self._kinds:
            for number in kind.holds:
                least[number] += kind.count
        for number, count in self._starts.items():
            least[number] += count * self._parts[number]
        most = np.array([self._may[task] for task in self._classes]) * self._parts
        for (number, _), count in self._beside.items():
            most[number] -= count
        self._least, self._most = least, most
        kinds = [float(kind.count) for kind in self._kinds]
        lows = [*least, *[-_MOST] * (2 * self._places + len(kinds) + 2)]
        highs = [*self._most, *self._room.reshape(-1).tolist(), *kinds, self._refuses, float(moves)]
        for low, high in zip(lows, highs, strict=True):
            solver.addRow(float(low), float(high), 0, np.zeros(0, np.int32), np.zeros(0))
        self._last = len(lows) - 1
        for number, place, sign, most in self._columns_outside():
            values = {number: sign, **self._room_of(place, sign * self._asks[number]), self._last: float(sign < 0)}
            _column(solver, 0.0, most, values)
        for number, parts in self._refusable():
            _column(solver, 0.0, parts, {number: 1.0, self._last - 1: self._worth[number]})
        for number in self._starts:
            # Until columns with it are known, the class is held by none; more dearly than by any.
            _column(solver, _NOWHERE, _MOST, {number: 1.0})
        return solver

    def _columns_outside(self) -> Iterator[tuple[int, int, float, float]]:
        """Yield of tasks without GPUs: class, place, whether one is there (1) or leaves (-1), and how many."""
        without = [number for number, task in enumerate(self._classes) if not task.gpus]
        for number in without:
            for place in range(self._places):
                models = self._classes[number].models
                if not models or self._model[place] in models:
                    yield number, place, 1.0, float(self._most[number])
                if there := self._beside[number, place]:
                    yield number, place, -1.0, float(there)

    def _refusable(self) -> list[tuple[int, float]]:
        """Return which classes may be refused, and how many parts of each."""
        some = self._starts.items() if self._refuses else ()
        return [(number, count * float(self._parts[number])) for number, count in some if self._sizes[number]]

    def _refused(self, of_classes: _Floats, of_refusal: float) -> float:
        """Return what all is paid that is refused."""
        paid = [
            max(-float(of_classes[number]) - of_refusal * float(self._worth[number]), 0.0) * parts
            for number, parts in self._refusable()
        ]
        return sum(paid) + of_refusal * self._refuses

    def _outside(self, of_classes: _Floats, of_room: _Floats, of_move: float) -> float:
        """Return what all is paid but GPUs, moves, and what is refused."""
        total = float(np.where(of_classes > 0, of_classes * self._most, of_classes * self._least).sum())
        total += float((of_room * self._room).sum())
        for number, place, sign, most in self._columns_outside():
            paid = -sign * (float(of_classes[number]) + float(self._asks[number] @ of_room[place]))
            total += max(paid - (of_move if sign < 0 else 0.0), 0.0) * most
        return total

    def _room_of(self, place: int, asks: _Floats) -> dict[int, float]:
        first = len(self._classes) + 2 * place
        return {first: float(asks[0]), first + 1: float(asks[1])}

    def _fill(self, place: int, pays: _Floats) -> _Filling:
        """Return how to fill GPUs of a place."""
        of_size: dict[int, int] = {}
        for number in self._allowed[place]:
            size = self._sizes[number]
            if pays[number] > 0 and (size not in of_size or pays[number] > pays[of_size[size]]):
                of_size[size] = number
        paid, last = [0.0] * (MILLI + 1), [-1] * (MILLI + 1)
        for free in range(1, MILLI + 1):
            paid[free] = paid[free - 1]
            for size, number in of_size.items():
                if size <= free and (more := paid[free - size] + float(pays[number])) > paid[free]:
                    paid[free], last[free] = more, number
        return _Filling(paid, last)

    def _best(
        self, kind: _Gpus, pays: _Floats, filling: _Filling, of_move: float
    ) -> tuple[float, tuple[int, ...], tuple[int, ...]]:
        """Return what is paid at most for such a GPU, what stays on it, and what comes."""
        best, stays, room = -_MOST, (), MILLI
        count = len(kind.holds)
        for staying in {kept for most in range(count + 1) for kept in combinations(kind.holds, most)}:
            gone = Counter(kind.holds) - Counter(staying)
            free = MILLI - sum(self._sizes[number] for number in staying)
            paid = sum(float(pays[number]) for number in staying) + filling.paid[free]
            paid -= of_move * sum(many / self._parts[number] for number, many in gone.items())
            if paid > best:
                best, stays, room = paid, staying, free
        added: list[int] = []
        while room and filling.paid[room] > 0:
            if filling.last[room] < 0:
                room -= 1
                continue
            added.append(filling.last[room])
            room -= self._sizes[added[-1]]
        return best, stays, tuple(added)

    def _add(self, solver: highspy.Highs, row: int, kind: _Gpus, kept: Sequence[int], added: Sequence[int]) -> None:
        """Let a column be taken."""
        parts = Counter([*kept, *added])
        gone = Counter(kind.holds) - Counter(kept)
        asks = sum((self._asks[number] * many for number, many in parts.items()), np.zeros(2))
        leaving = sum(many / float(self._parts[number]) for number, many in gone.items())
        worth = sum(float(self._worth[number]) * many for number, many in parts.items())
        values = {number: float(many) for number, many in parts.items()}
        _column(solver, worth, _MOST, {**values, **self._room_of(kind.place, asks), row: 1.0, self._last: leaving})


def moments(
    nodes: Nodes, arriving: Sequence[Task], config: EngineConfig, per_cents: Sequence[float], *, by_node: float | None
) -> Iterator[tuple[str, float, float, float]]:
    """Yield for moments of a run without moves: which, per cent moved, GPU held then, and the bound, in thousandths.

    Args:
        by_node: by node, from when so many per cent of the GPUs are held, or else from the end.
    """
    places: ours.Places = {}
    for _ in ours.allocated(nodes, arriving, config, places=places):
        pass
    demands = [task.demand * (number in places) for number, task in enumerate(arriving)]
    refused = next((number for number in range(len(arriving)) if number not in places), len(arriving))
    after = {"the first refusal": refused, "the end": len(arriving)}
    if by_node is not None:
        full = int(np.searchsorted(np.cumsum(demands), int(nodes.gpus.sum()) * MILLI * by_node / 100)) + 1
        after = {f"{by_node:g} % held" if full <= len(arriving) else "the end": full}
    for moment, count in after.items():
        stays = {number: place for number, place in places.items() if number < count}
        program = Bound(nodes, Held.of(arriving, stays), arriving)
        most = program.of if by_node is None else program.by_node
        for per_cent in per_cents:
            yield moment, per_cent, float(sum(demands[:count])), most(int(len(places) * per_cent / 100))


def anyhow(nodes: Nodes, arriving: Sequence[Task], *, per_cent: float, but: float = 0.0) -> float:
    """Return the bound for whoever starts what first asks for so much of the GPUs, however much is moved.

    It is less than that if they cannot all start.

    Args:
        but: all but so many per cent of the GPUs of that.
    """
    total = int(nodes.gpus.sum()) * MILLI
    first = int(np.searchsorted(np.cumsum([task.demand for task in arriving]), total * per_cent / 100)) + 1
    program = Bound(nodes, Held({}, {}), arriving, starts=arriving[:first], refuses=total * but / 100)
    return min(program.of(0), float(total))


def _starts(name: str, per_cent: float, but: float, most: float) -> str:
    """Say what whoever starts so much holds at most, and whether that is what is aimed at."""
    first = f"the first {per_cent:g} %" + (f" but {but:g}" if but else "")
    if most < per_cent - but:
        return f"{first}: nobody can"
    aim = published(name)[130] + _ABOVE
    return f"{first}: at most {most:.2f} per cent of the GPUs, {'below' if most < aim else 'not below'} {aim:.2f}"


def main(arguments: Sequence[str]) -> None:
    """Print bounds of each list."""
    parser = argparse.ArgumentParser(prog="python -m tests.measured.league bound", description=__doc__)
    parser.add_argument("--list", nargs="+", default=LISTS, choices=LISTS, help="of tasks")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--part", type=int, default=1, help="take one node in so many")
    parser.add_argument(
        "--per-cent", type=float, nargs="+", default=[0.0, 1.0], help="of the started tasks moved, at most"
    )
    parser.add_argument(
        "--by-node", type=float, help="instead: each node is a program, from so many per cent held on: minutes, lower"
    )
    parser.add_argument(
        "--starting", type=float, nargs="*", help=f"instead: if the first so many per cent start; unsaid, {_UNTIL}"
    )
    parser.add_argument("--but", type=float, default=0.0, help="all but so many per cent of the GPUs of those")
    given = parser.parse_args(arguments)
    all_nodes = nodes().every(given.part)
    total = int(all_nodes.gpus.sum())
    for name in given.list:
        arriving = arrivals(tasks(name), total=total, percent=130, seed=given.seed)
        if given.starting is not None:
            for per_cent in given.starting or _UNTIL[name]:
                most = anyhow(all_nodes, arriving, per_cent=per_cent, but=given.but) / 10 / total
                print(f"{name:12} whoever starts {_starts(name, per_cent, given.but, most)}", flush=True)
            continue
        for moment, per_cent, held, most in moments(
            all_nodes, arriving, EngineConfig(gpu_sharing=True), given.per_cent, by_node=given.by_node
        ):
            figures = f"{held / 10 / total:6.2f} held, at most {most / 10 / total:6.2f} per cent of the GPUs"
            print(f"{name:12} {per_cent:g} % moved from {moment} on: {figures}", flush=True)


def _column(solver: highspy.Highs, worth: float, most: float, values: Mapping[int, float]) -> None:
    there = {row: value for row, value in values.items() if value}
    rows, weights = np.array(list(there), np.int32), np.array(list(there.values()))
    solver.addCol(worth, 0.0, most, len(there), rows, weights)
