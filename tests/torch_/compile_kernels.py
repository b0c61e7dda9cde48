"""Compiles the kernels of paged attention for GPUs that need not be there; a line for each, with
the shared memory it takes in bytes. Triton must not run as an interpreter."""

from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from headway.executors.torch_ import paged

POINTERS = {"q": "*bf16", "kv": "*bf16", "out": "*bf16", "parts": "*fp32"}
IDS = {"tables": "*i64", "places": "*i64"}
# Llama 3.1 8B.
SHAPE = {"size": 16, "group": 4, "heads": 32, "dim": 128, "wide": 128, "width": 64}
PREFILL = SHAPE | {"queries": 16, "height": 64, "split": False, "precision": "tf32"}
DECODE = SHAPE | {"queries": 1, "height": 16, "split": True, "precision": "tf32"}
MERGE = {"heads": 32, "dim": 128, "wide": 128, "most": 16}


def compiled(kernel: Any, arch: int, constants: dict[str, Any]) -> Any:
    """The kernel as it is launched: strides and most pointers are multiples of 16."""
    signature, aligned = {}, {}
    for i, name in enumerate(kernel.arg_names):
        kind = (POINTERS | IDS | {"scale": "fp32"}).get(name, "i32")
        signature[name] = "constexpr" if name in constants else kind
        if name in POINTERS or (
            kind == "i32" and name not in ("table_row", "parts_split", "splits")
        ):
            aligned[(i,)] = [["tt.divisibility", 16]]
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(kernel.arg_names.index(name),): value for name, value in constants.items()},
        attrs={
            place: of
            for place, of in aligned.items()
            if kernel.arg_names[place[0]] not in constants
        },
    )
    options = {"num_warps": 4, "num_stages": 2}
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


def main() -> None:
    """All of them."""
    for arch in (80, 90):
        for name, kernel, constants in (
            ("prefill", paged._attend, PREFILL),
            ("decode", paged._attend, DECODE),
            ("merge", paged._merge, MERGE),
        ):
            made = compiled(kernel, arch, constants)
            assert made.asm["cubin"]
            print(arch, name, made.metadata.shared)


if __name__ == "__main__":
    main()
