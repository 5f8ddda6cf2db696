"""Events decided by the rules of copies."""

from __future__ import annotations

from tests.classify.examples.writing import D2H, H2D, LARGE, example, inside, named, noted

noted("offload-annotation", "activation offloading attn", f"Memcpy {D2H}", kind="memcpy")
noted("onload-annotation", "activation reloading attn", f"Memcpy {H2D}", kind="memcpy")
inside("onload-backward", "MyFnBackward", f"Memcpy {H2D}", kind="memcpy", bytes=LARGE)
named("copy-kernel", "__amd_rocclr_copyBuffer")


@example("host-read")
def _(p):
    return p.copy(D2H, 1, bytes=4)


@example("host-write")
def _(p):
    return p.copy(H2D, 1, bytes=64)


@example("offload-optimizer")
def _(p):
    p.note("Optimizer.step#Adam.step", 0, 10)
    return p.copy(D2H, 1, bytes=LARGE)


@example("onload-weights")
def _(p):
    return p.copy(H2D, 1, bytes=LARGE)


@example("offload-stream")
def _(p):
    return p.copy(D2H, 1, bytes=LARGE, stream=30)


@example("input-copy")
def _(p):
    return p.trained().copy("HtoD (Pageable -> Device)", 1, bytes=LARGE)


@example("result-copy")
def _(p):
    return p.copy("DtoH (Device -> Pageable)", 1, bytes=LARGE)


@example("peer-copy")
def _(p):
    return p.copy("PtoP (Device -> Device)", 1, bytes=LARGE)


@example("symmetric-memory-copy")
def _(p):
    p.op("symm_mem::_low_contention_all_gather", 0, 10)
    return p.copy("DtoD (Device -> Device)", 1, bytes=LARGE)


@example("symmetric-memory-sum")
def _(p):
    p.op("symm_mem::_low_contention_reduce_scatter", 0, 10)
    p.op("aten::mean", 0.5, 9)
    return p.kernel("void at::native::reduce_kernel<128, 4>", 1)
