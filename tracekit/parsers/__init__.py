"""Readers of traces: PyTorch profiler files and Nsight Systems exports."""
