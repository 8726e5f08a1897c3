"""What can be launched under a label: a kernel under test with its steps and workspaces, or the vendor's product."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol

from gemmsweep.device.cuda.api import check
from gemmsweep.device.cuda.cublas import Elementwise
from gemmsweep.device.cuda.launch import (
    ABSENT,
    Kernel,
    Parameters,
    encode_tensor_map,
    function_of,
    load_module,
    pack_argument,
    pointer,
)
from gemmsweep.device.cuda.ring import BufferSet
from gemmsweep.device.function import called, task_of
from gemmsweep.model import Build, Launch, Problem


class Launchable(Protocol):
    """One launch, as `nodes` nodes of a graph."""

    nodes: int

    def enqueue(self, stream: Any, operands: BufferSet) -> None: ...

    def close(self) -> None: ...


class Config:
    """A built kernel on one problem."""

    def __init__(self, build: Build, launch: Launch, problem: Problem, fixed: Mapping[str, bytes]) -> None:
        import cupy

        self._launch, self._problem = launch, problem
        self._module = load_module(Path(build.path).read_bytes())
        self._kernels = [
            Kernel(function_of(self._module, build.symbols.get(step.kernel, step.kernel)), step)
            for step in launch.steps
        ]
        self._workspaces = {
            w.name: (cupy.empty if w.zero == "never" else cupy.zeros)(w.bytes, dtype=cupy.uint8)
            for w in launch.workspaces
        }
        self._zeroed = [self._workspaces[w.name] for w in launch.workspaces if w.zero == "each" and w.bytes]
        pointers = {f"workspace:{name}": pointer(memory.data.ptr) for name, memory in self._workspaces.items()}
        self._fixed = {**ABSENT, **fixed, **pointers}
        self._operand_maps = [wanted for wanted in launch.tensor_maps if not wanted.extent]
        for wanted in launch.tensor_maps:
            if wanted.extent:  # of a workspace, which is the label's own: the same for every buffer set
                address = self._workspaces[wanted.operand.partition(":")[2]].data.ptr
                self._fixed[f"tensor_map:{wanted.name}"] = encode_tensor_map(wanted, problem, address)
        self.nodes = len(self._kernels) + len(self._zeroed)

    def enqueue(self, stream: Any, operands: BufferSet) -> None:
        from cuda.bindings import driver

        for memory in self._zeroed:
            check((*driver.cuMemsetD8Async(memory.data.ptr, 0, memory.nbytes, stream), None))
        values = self._values(operands)
        for kernel, step in zip(self._kernels, self._launch.steps, strict=True):
            kernel.enqueue(stream, Parameters([pack_argument(word, values) for word in step.args]))

    def _values(self, operands: BufferSet) -> dict[str, bytes]:
        """The bytes of every word that stands for this buffer set. A separate D is the output, C then the input."""
        values = {**self._fixed, **{name: pointer(address) for name, address in operands.addresses.items()}}
        if any("D" in step.args for step in self._launch.steps):
            values["D"], values["C"] = values["C"], self._fixed["C"]
        for wanted in self._operand_maps:
            if wanted not in operands.tensor_maps:
                address = operands.addresses["C" if wanted.operand == "D" else wanted.operand]
                operands.tensor_maps[wanted] = encode_tensor_map(wanted, self._problem, address)
            values[f"tensor_map:{wanted.name}"] = operands.tensor_maps[wanted]
        return values

    def close(self) -> None:
        from cuda.bindings import driver

        check((*driver.cuModuleUnload(self._module), None))


class Product(Protocol):
    """One A·B of a library on one buffer set."""

    def enqueue(self, stream: Any, problem: Problem, operands: BufferSet) -> None: ...


class Vendor:
    """A library's product, and after it the epilogue kernel where the problem has an epilogue."""

    def __init__(self, product: Product, problem: Problem, elementwise: Elementwise | None) -> None:
        self._product, self._problem, self._elementwise = product, problem, elementwise
        self.nodes = 0  # known once one launch has been captured

    def enqueue(self, stream: Any, operands: BufferSet) -> None:
        self._product.enqueue(stream, self._problem, operands)
        if self._elementwise is not None:
            self._elementwise.enqueue(stream, operands)

    def close(self) -> None:
        if self._elementwise is not None:
            self._elementwise.close()


class UserFunction:
    """A Python function of the user's, called on the stream that is captured; CuPy's and torch's current one."""

    def __init__(self, call: Callable[..., Any], label: str, problem: Problem, bias: Any, stream: Any) -> None:
        self._call, self._label, self._problem, self._stream = call, label, problem, stream
        self._task = task_of(problem, bias, int(stream.ptr))
        self.nodes = 0  # known once one launch has been captured

    def enqueue(self, stream: Any, operands: BufferSet) -> None:
        """Raises DeviceFailure for whatever the function raises."""
        with self._stream, torch_stream(int(self._stream.ptr), int(self._stream.device_id)):
            called(self._call, self._label, self._problem, operands, self._task)

    def close(self) -> None:
        """Nothing of its own."""


def torch_stream(pointer: int, device: int) -> AbstractContextManager[Any]:
    """Our stream as torch's current one, where the function has brought torch along; Triton follows torch."""
    torch = sys.modules.get("torch")
    if torch is None:
        return nullcontext()
    context: AbstractContextManager[Any] = torch.cuda.stream(torch.cuda.ExternalStream(pointer, device=device))
    return context


class Alias:
    """A further name for what another label has loaded and will close."""

    def __init__(self, of: Launchable) -> None:
        self._of = of
        self.nodes = of.nodes

    def enqueue(self, stream: Any, operands: BufferSet) -> None:
        self._of.enqueue(stream, operands)

    def close(self) -> None:
        """Nothing of its own."""
