"""Names of CUDA's and HIP's calls: what each does to the host and to the GPU."""

import re

import polars as pl
import pytest

from tests.kept import analysis_of
from tracekit.classify.names import HOST_CALLS
from tracekit.metrics.host.events import (
    BLOCKING_PATTERN,
    LAUNCH_PATTERN,
    NamedRows,
    find_frames,
    split_host_events,
)
from tracekit.metrics.host.idle_activity import find_host_activity
from tracekit.metrics.host.waiting_calls import find_waiting_calls
from tracekit.schema import EVENTS, LABELLED, conform

SAME_CALLS = {
    # CUDA's call: HIP's call
    "cudaDeviceSynchronize": "hipDeviceSynchronize",
    "cudaStreamSynchronize": "hipStreamSynchronize",
    "cudaStreamSynchronize_ptsz": "hipStreamSynchronize_spt",
    "cudaEventSynchronize": "hipEventSynchronize",
    "cuCtxSynchronize": "hipCtxSynchronize",
    "cudaMemcpy": "hipMemcpy",
    "cudaMemcpy_ptds": "hipMemcpy_spt",
    "cudaMemcpy2D": "hipMemcpy2D",
    "cudaMemcpy3D": "hipMemcpy3D",
    "cudaMemcpyToSymbol": "hipMemcpyToSymbol",
    "cudaMemcpyFromSymbol": "hipMemcpyFromSymbol",
    "cudaMemcpyToArray": "hipMemcpyToArray",
    "cudaMemcpyFromArray": "hipMemcpyFromArray",
    "cudaMemcpy2DToArray": "hipMemcpy2DToArray",
    "cuMemcpyDtoH_v2": "hipMemcpyDtoH",
    "cuMemcpyHtoD_v2": "hipMemcpyHtoD",
    "cuMemcpyDtoD_v2": "hipMemcpyDtoD",
    "cuMemcpyAtoH_v2": "hipMemcpyAtoH",
    "cuMemcpyHtoA_v2": "hipMemcpyHtoA",
    "cuMemcpy3D_v2": "hipDrvMemcpy3D",
    "cuMemcpy2D_v2": "hipMemcpyParam2D",
    "cudaMemcpyAsync": "hipMemcpyAsync",
    "cudaMemcpy2DAsync": "hipMemcpy2DAsync",
    "cudaMemcpyPeerAsync": "hipMemcpyPeerAsync",
    "cudaMemcpyToSymbolAsync": "hipMemcpyToSymbolAsync",
    "cuMemcpyDtoHAsync_v2": "hipMemcpyDtoHAsync",
    "cuMemcpyHtoDAsync_v2": "hipMemcpyHtoDAsync",
    "cudaMemset": "hipMemset",
    "cudaMemsetAsync": "hipMemsetAsync",
    "cuMemsetD32Async": "hipMemsetD32Async",
    "cudaLaunchKernel": "hipLaunchKernel",
    "cudaLaunchKernelExC_v11060": "hipLaunchKernelExC",
    "cudaLaunchCooperativeKernel": "hipLaunchCooperativeKernel",
    "cudaLaunchCooperativeKernelMultiDevice": "hipLaunchCooperativeKernelMultiDevice",
    "cuLaunchKernel": "hipModuleLaunchKernel",
    "cuLaunchKernelEx": "hipDrvLaunchKernelEx",
    "cuLaunchCooperativeKernel": "hipModuleLaunchCooperativeKernel",
    "cudaGraphLaunch": "hipGraphLaunch",
    "cudaGraphLaunch_ptsz": "hipGraphLaunch_spt",
    "cudaStreamBeginCapture": "hipStreamBeginCapture",
    "cudaStreamEndCapture": "hipStreamEndCapture",
    "cudaStreamWaitEvent": "hipStreamWaitEvent",
    "cudaMalloc": "hipMalloc",
    "cudaMallocAsync": "hipMallocAsync",
    "cudaMallocManaged": "hipMallocManaged",
    "cudaMallocHost": "hipHostMalloc",
    "cudaHostAlloc": "hipHostAlloc",
    "cudaHostRegister": "hipHostRegister",
    "cudaHostUnregister": "hipHostUnregister",
    "cudaFree": "hipFree",
    "cudaFreeAsync": "hipFreeAsync",
    "cudaFreeHost": "hipHostFree",
    "cuMemAlloc_v2": "hipMemAllocPitch",
    "cuMemCreate": "hipMemCreate",
    "cuMemRelease": "hipMemRelease",
    "cuMemMap": "hipMemMap",
    "cuMemUnmap": "hipMemUnmap",
    "cuMemSetAccess": "hipMemSetAccess",
    "cuMemAddressReserve": "hipMemAddressReserve",
    "cuMemAddressFree": "hipMemAddressFree",
    "cudaMemPoolTrimTo": "hipMemPoolTrimTo",
    "cudaLibraryLoadData": "hipLibraryLoadData",
    "cuLibraryLoadData": "hipLibraryLoadData",
    "cuModuleLoadData": "hipModuleLoadData",
    "cuModuleLoadDataEx": "hipModuleLoadDataEx",
    "cudaIpcOpenMemHandle": "hipIpcOpenMemHandle",
    "cudaIpcCloseMemHandle": "hipIpcCloseMemHandle",
    "cudaEventRecord": "hipEventRecord",
    "cudaGetDevice": "hipGetDevice",
    "cudaStreamIsCapturing": "hipStreamIsCapturing",
    "cudaOccupancyMaxActiveBlocksPerMultiprocessor": "hipOccupancyMaxActiveBlocksPerMultiprocessor",
}
KINDS_OF_CALLS = {
    # kind of call: (the first and the last of CUDA's names above that are of this kind)
    "synchronize": ("cudaDeviceSynchronize", "cuCtxSynchronize"),
    "blocking_copy": ("cudaMemcpy", "cuMemcpy2D_v2"),
    "async_copy": ("cudaMemcpyAsync", "cuMemcpyHtoDAsync_v2"),
    "copy": ("cudaMemcpy", "cuMemcpyHtoDAsync_v2"),
    "memset": ("cudaMemset", "cuMemsetD32Async"),
    "launch_kernel": ("cudaLaunchKernel", "cuLaunchCooperativeKernel"),
    "launch_graph": ("cudaGraphLaunch", "cudaGraphLaunch_ptsz"),
    "capture": ("cudaStreamBeginCapture", "cudaStreamEndCapture"),
    "stream_wait": ("cudaStreamWaitEvent", "cudaStreamWaitEvent"),
    "allocation": ("cudaMalloc", "cudaMemPoolTrimTo"),
    "load_code": ("cudaLibraryLoadData", "cuModuleLoadDataEx"),
    "open_shared_memory": ("cudaIpcOpenMemHandle", "cudaIpcOpenMemHandle"),
    "close_shared_memory": ("cudaIpcCloseMemHandle", "cudaIpcCloseMemHandle"),
}
HIP_ALONE = {
    "hipMemcpyWithStream": {"copy", "blocking_copy"},
    "hipMemcpyWithStream_spt": {"copy", "blocking_copy"},
    "hipExtModuleLaunchKernel": {"launch_kernel"},
    "hipHccModuleLaunchKernel": {"launch_kernel"},
    "hipExtLaunchKernel": {"launch_kernel"},
    "hipExtLaunchMultiKernelMultiDevice": {"launch_kernel"},
    "hipLaunchByPtr": {"launch_kernel"},
    "hipExtMallocWithFlags": {"allocation"},
}


def kinds_of(name):
    return {kind for kind, pattern in HOST_CALLS.items() if re.search(pattern, name)}


@pytest.mark.parametrize("kind", HOST_CALLS)
def test_calls_of_cuda_are_of_their_kind_and_no_others(kind):
    names = list(SAME_CALLS)
    first, last = map(names.index, KINDS_OF_CALLS[kind])
    assert [name for name in names if kind in kinds_of(name)] == names[first : last + 1]


@pytest.mark.parametrize(("cuda", "hip"), SAME_CALLS.items())
def test_a_call_of_hip_is_of_the_kinds_of_its_counterpart(cuda, hip):
    assert kinds_of(hip) == kinds_of(cuda)


@pytest.mark.parametrize(("name", "kinds"), HIP_ALONE.items())
def test_calls_that_hip_has_alone(name, kinds):
    assert kinds_of(name) == kinds


@pytest.mark.parametrize(("name", "kinds"), HIP_ALONE.items())
def test_the_patterns_say_the_same_to_polars(name, kinds):
    """Tables are searched by polars, whose regular expressions are another engine's."""
    names = pl.Series([name])
    assert names.str.contains(LAUNCH_PATTERN).item() == bool(kinds & {"launch_kernel", "copy"})
    assert names.str.contains(BLOCKING_PATTERN).item() == ("blocking_copy" in kinds)


@pytest.mark.parametrize("name", ["cudaMemcpy", "hipMemcpyWithStream"])
def test_a_host_in_a_blocking_copy_waits_for_the_gpu(name):
    calls = {"kind": "runtime", "name": [name], "tid": 1, "start_ns": [10], "end_ns": [90]}
    assert find_waiting_calls(NamedRows(pl.DataFrame(calls)))["blocks"].to_list() == [True]
    gpu = conform(pl.DataFrame({"start_ns": [0, 100], "launch_tid": [1, 1]}), LABELLED)
    gaps = pl.DataFrame({"start_ns": [5], "launch_bound_ns": [90], "next": [1]})
    events = conform(pl.DataFrame(calls), EVENTS)
    activity = find_host_activity(split_host_events(events), find_frames(events), gpu, gaps)
    assert activity.select("instead", "what", "ns").rows()[0] == ("sync", name, 80)


def test_a_decode_step_that_waits_in_a_copy_is_not_blocked_by_the_host(corpus):
    """Its host launches four kernels, then stands 463.1 ms in ``hipMemcpyWithStream`` until the GPU reaches them."""
    analysis = analysis_of(corpus / "models" / "sglang_decode.json.gz")
    path = analysis.tables["critical_path"].with_columns(ns=pl.col("end_ns") - pl.col("start_ns"))
    assert path.filter(kind="host")["ns"].sum() < 1_000_000
    # What held the stream was not recorded.
    assert path.filter(kind="unknown")["ns"].max() > 463_000_000
