"""What the GPU's kernels compile to, read without a GPU: Triton's wheel has NVIDIA's assembler and
disassembler, and compiles for a card that is not there."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from luna.kernels.compiled import PASSES

HOPPER = GPUTarget("cuda", 90, 32)
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
ROWS = ("grad", "q", "k", "v", "out", "dq", "dk", "dv")  # tensors that come with their strides
NUMBERS = ("segments", "blocks", "N", "K", "L", "w")


class MachineCode(NamedTuple):
    """Counts of one kernel's instructions."""

    registers: int
    spills: int  # loads and stores of what found no register
    shared: int  # bytes of shared memory
    fences: int  # that order memory for the whole GPU
    returning: int  # atomic additions that wait for the old value
    vectors: int  # atomic additions of four numbers


def compiled(
    kernel: Any, constants: dict[str, Any], *, half: bool, options: Any = PASSES, **groups: int
) -> MachineCode:
    """Compile a kernel as a call with aligned tensors and these options does, and count. Groups of
    pointers: how many there are in an argument."""
    rows = ("*bf16" if half else "*fp32", "i32", "i32", "i32")
    types: dict[str, Any] = dict.fromkeys(ROWS, rows) | dict.fromkeys(NUMBERS, "i32")
    types |= {"maps": ("*fp32",) * 4, "mask": "*i1", "ranks": "*i32", "sizes": ("i32",) * 4}
    types |= {name: ("*fp32",) * number for name, number in groups.items()}
    types |= dict.fromkeys(constants, "constexpr")
    signature = {name: types.get(name, "*fp32") for name in kernel.arg_names}
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, signature, places, _aligned(signature))
    code = triton.compile(source, target=HOPPER, options={"num_warps": 4, **options})
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code.asm["cubin"])
        file.flush()
        usage = _output_of("cuobjdump", "-res-usage", file.name)
        listing = _output_of("nvdisasm", "-c", file.name)

    def count(pattern: str) -> int:
        return len(re.findall(pattern, listing))

    registers = re.search(r"REG:(\d+)", usage)
    assert registers, usage
    return MachineCode(
        registers=int(registers[1]),
        spills=count(r"\b(LDL|STL)\b"),
        shared=code.metadata.shared,
        fences=count(r"MEMBAR\S*GPU"),
        returning=count(r"\bATOMG?\b"),
        vectors=count(r"RED\S*F32x4|RED\S*\.x4"),
    )


def _aligned(signature: dict[str, Any]) -> dict[tuple[int, ...], list[list[Any]]]:
    """Say of every pointer and number that 16 divides it, as Triton finds out at a call."""
    divisible = [["tt.divisibility", 16]]
    places: dict[tuple[int, ...], list[list[Any]]] = {}
    for i, kind in enumerate(signature.values()):
        if isinstance(kind, tuple):
            places |= {(i, part): divisible for part in range(len(kind))}
        elif kind != "constexpr":
            places[(i,)] = divisible
    return places


def _output_of(tool: str, *arguments: str) -> str:
    return subprocess.run(
        [TOOLS / tool, *arguments], check=True, capture_output=True, text=True
    ).stdout
