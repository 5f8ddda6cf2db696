"""What is asked of LLVM itself: to compile, and to load code that cannot be put into memory without it."""

from __future__ import annotations

from typing import Any

_engines: list[Any] = []  # code that LLVM has loaded is there as long as its engine


def processor() -> tuple[str, str, str]:
    """Return what LLVM compiles for: the system, the processor and what that can do."""
    from llvmlite import binding  # type: ignore[import-untyped]

    return binding.get_process_triple(), binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()


def target_machine() -> Any:
    """Return what turns LLVM's code into this processor's, such that it can stand anywhere in memory."""
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    triple, cpu, features = processor()
    return binding.Target.from_triple(triple).create_target_machine(
        cpu=cpu, features=features, opt=3, reloc="pic", codemodel="small", jit=True
    )


def place(code: bytes, function: str) -> int:
    """Let LLVM put an object file into memory for good; return the address of a function in it."""
    from llvmlite import binding

    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), target_machine())
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    address: int = engine.get_function_address(function)
    if not address:
        raise RuntimeError(f"{function} is not in its object file")
    _engines.append(engine)
    return address
