"""A burst as one captured CUDA graph: stamp, event, a linear chain of launches, event, stamp."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gemmsweep.device.cuda.api import check
from gemmsweep.device.cuda.clock import Clock
from gemmsweep.protocol import DeviceFailure


@contextmanager
def capture(stream: Any) -> Iterator[list[Any]]:
    """Capture what is enqueued on `stream`; the list holds the graph afterwards."""
    from cuda.bindings import driver

    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    check((*driver.cuStreamBeginCapture(stream, mode), None))
    graphs: list[Any] = []
    try:
        yield graphs
    except BaseException:
        _, broken = driver.cuStreamEndCapture(stream)  # its own complaint would hide the first
        if broken is not None and int(broken):
            driver.cuGraphDestroy(broken)
        raise
    graphs.append(check(driver.cuStreamEndCapture(stream)))


def nodes_of(graph: Any) -> list[Any]:
    from cuda.bindings import driver

    _, count = check(driver.cuGraphGetNodes(graph))
    nodes, _ = check(driver.cuGraphGetNodes(graph, count))
    return list(nodes)


def newest(name: str) -> Any:
    """A driver call that knows kinds of edges: CUDA 12's bindings have it under a second name."""
    from cuda.bindings import driver

    return getattr(driver, f"{name}_v2", None) or getattr(driver, name)


def chain(graph: Any) -> list[tuple[Any, Any, Any]]:
    """Edges (from, to, data) from first to last. Raises DeviceFailure where the nodes are no linear chain."""
    get_edges = newest("cuGraphGetEdges")
    *_, count = check(get_edges(graph))
    sources, targets, data, _ = check(get_edges(graph, count))
    following = {int(edge[0]): edge for edge in zip(sources, targets, data, strict=True)}
    ends = {int(target) for target in targets}
    here = next((int(source) for source in sources if int(source) not in ends), 0)
    ordered: list[tuple[Any, Any, Any]] = []
    while here in following:
        ordered.append(following.pop(here))
        here = int(ordered[-1][1])
    if following or len(ordered) != len(nodes_of(graph)) - 1:
        raise DeviceFailure("launch", "the captured launches are not a linear chain")
    return ordered


def is_early(edge: tuple[Any, Any, Any]) -> bool:
    """The later kernel may start before the earlier one has ended (programmatic dependent launch)."""
    from cuda.bindings import driver

    return int(edge[2].type) == int(driver.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC)


def end_overlap(graph: Any, first: int, nodes_per_launch: int) -> int:
    """Make every launch wait for the one before it; returns how many did not.

    A library may overlap the kernels of one product (cuBLAS its split-K sum): that is how it runs, and it stays. But
    overlap of one product with the next would be a head start that a kernel raced against it does not get. `first` is
    the place of the first launch's first node.
    """
    edges = chain(graph)
    between = [e for place, e in enumerate(edges, start=1) if place > first and (place - first) % nodes_per_launch == 0]
    early = [edge for edge in between if is_early(edge)]
    for source, target, data in early:
        check((*newest("cuGraphRemoveDependencies")(graph, [source], [target], [data], 1), None))
        check((*newest("cuGraphAddDependencies")(graph, [source], [target], None, 1), None))
    return len(early)


def kernel_names(graph: Any) -> tuple[str, ...]:
    """Names of the captured kernels, in no particular order, each once."""
    from cuda.bindings import driver

    names: dict[str, None] = {}
    for node in nodes_of(graph):
        if check(driver.cuGraphNodeGetType(node)) != driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL:
            continue
        parameters = check(driver.cuGraphKernelNodeGetParams(node))
        if int(parameters.func):
            name = check(driver.cuFuncGetName(parameters.func))
        else:
            name = check(driver.cuKernelGetName(parameters.kern))
        names[name.decode()] = None
    return tuple(names)


def captured_once(stream: Any, enqueue: Callable[[], None]) -> tuple[tuple[str, ...], int]:
    """Names of the kernels of one launch, and its number of nodes."""
    from cuda.bindings import driver

    # Once outside a capture: a library loads its kernels and settles its choice on a first call.
    enqueue()
    check((*driver.cuStreamSynchronize(stream), None))
    with capture(stream) as graphs:
        enqueue()
    try:
        return kernel_names(graphs[0]), len(nodes_of(graphs[0]))
    finally:
        driver.cuGraphDestroy(graphs[0])


class NoExternalEventsError(Exception):
    """This driver cannot record a timing event inside a graph."""


class BurstGraph:
    """`launches` calls of `enqueue(i)` between two events, ready to be launched as one graph."""

    def __init__(
        self, stream: Any, clock: Clock, enqueue: Callable[[int], None], launches: int, nodes_per_launch: int
    ) -> None:
        from cuda.bindings import driver

        self.launches = launches
        self._stream, self._clock = stream, clock
        self._events = [check(driver.cuEventCreate(0)) for _ in range(2)]
        self._graph: Any = None
        self._exec: Any = None
        self.events_inside = True
        try:
            self._capture(enqueue)
            self._check_nodes(nodes_per_launch)
            self._exec = check(driver.cuGraphInstantiate(self._graph, 0))
            check((*driver.cuGraphUpload(self._exec, stream), None))
        except BaseException:
            self.close()
            raise

    def _capture(self, enqueue: Callable[[int], None]) -> None:
        try:
            self._graph = self._captured(enqueue)
        except NoExternalEventsError:
            # Record around the graph instead: its two stamps are then in the time.
            self.events_inside = False
            self._graph = self._captured(enqueue)

    def _captured(self, enqueue: Callable[[int], None]) -> Any:
        with capture(self._stream) as graphs:
            self._clock.enqueue(self._stream, 0)
            self._record(0)
            for index in range(self.launches):
                enqueue(index)
            self._record(1)
            self._clock.enqueue(self._stream, 1)
        return graphs[0]

    def _record(self, which: int) -> None:
        from cuda.bindings import driver

        if self.events_inside:
            external = int(driver.CUevent_record_flags.CU_EVENT_RECORD_EXTERNAL)
            (code,) = driver.cuEventRecordWithFlags(self._events[which], self._stream, external)
            if int(code):
                raise NoExternalEventsError(code)

    def _check_nodes(self, nodes_per_launch: int) -> None:
        """The burst is exactly what it claims to be: no allocation or copy slipped in, no launch starts early."""
        count, before = len(nodes_of(self._graph)), 2 if self.events_inside else 1
        expected = self.launches * nodes_per_launch + 2 * before
        if count != expected:
            raise DeviceFailure("launch", f"the captured burst has {count} nodes where {expected} were expected")
        self.overlaps_ended = end_overlap(self._graph, before, nodes_per_launch)

    def launch(self) -> None:
        """Enqueue the burst."""
        from cuda.bindings import driver

        if not self.events_inside:
            check((*driver.cuEventRecord(self._events[0], self._stream), None))
        check((*driver.cuGraphLaunch(self._exec, self._stream), None))
        if not self.events_inside:
            check((*driver.cuEventRecord(self._events[1], self._stream), None))

    def elapsed_ns(self) -> int:
        """Time between the two events of the last launch; call after a synchronisation."""
        from cuda.bindings import driver

        return round(float(check(driver.cuEventElapsedTime(*self._events))) * 1e6)

    def close(self) -> None:
        from cuda.bindings import driver

        if self._exec is not None:
            driver.cuGraphExecDestroy(self._exec)
        if self._graph is not None:
            driver.cuGraphDestroy(self._graph)
        for event in self._events:
            driver.cuEventDestroy(event)
        self._events, self._exec, self._graph = [], None, None
