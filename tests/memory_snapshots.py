"""Memory snapshots in a few words, as PyTorch writes them."""

from __future__ import annotations

import pickle

BASE_US = 1_700_000_000_000_000
SEGMENT = 1 << 20
FRAMES = [
    {"name": "forward", "filename": "site-packages/torch/nn/modules/linear.py", "line": 134},
    {"name": "forward", "filename": "model.py", "line": 25},
]


def event(action, address, size, us, *, frames=FRAMES, stream=0):
    return {
        "action": action,
        "addr": address,
        "size": size,
        "stream": stream,
        "time_us": BASE_US + us,
        "frames": frames,
        "compile_context": "N/A",
        "user_metadata": "",
    }


def block(address, size, state="active_allocated", frames=()):
    return {
        "address": address,
        "size": size,
        "requested_size": size,
        "state": state,
        "frames": list(frames),
    }


def segment(address, blocks, *, total=SEGMENT, device=0):
    allocated = sum(row["size"] for row in blocks if row["state"] == "active_allocated")
    active = sum(row["size"] for row in blocks if row["state"].startswith("active"))
    return {
        "device": device,
        "address": address,
        "total_size": total,
        "allocated_size": allocated,
        "active_size": active,
        "requested_size": allocated,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }


def annotation(name, start_us, end_us, device=0):
    """Both ends of a range."""
    shared = {"name": name, "device": device}
    start = {"stage": "START", "time_us": BASE_US + start_us, **shared}
    end = {"stage": "END", "time_us": BASE_US + end_us, **shared}
    return [start, end]


def snapshot(events=(), segments=(), annotations=(), *, traces=None):
    return {
        "segments": list(segments),
        "device_traces": [list(events)] if traces is None else traces,
        "allocator_settings": {"expandable_segments": False},
        "external_annotations": list(annotations),
    }


def write(path, content):
    path.write_bytes(pickle.dumps(content))
    return path
