"""Records a weight update in the manner of checkpoint-engine: host shards, broadcast, reload, double buffered.

    python record/reload.py out/ --ranks 4 --rounds 2

Every rank owns one bucket a round. A round: all ranks copy their bucket from pinned memory into the
H2D buffer; then, owner by owner, the bucket goes into one of two IPC buffers, is broadcast, and is
copied into the weights on another stream. So the broadcast of one bucket runs beside the reload of
the bucket before it, and the next round's H2D beside the last reload.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from pipeline import join
from profilers import WARM_UP, PyTorch


def options() -> argparse.Namespace:
    """Read the words of the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--megabytes", type=int, default=32, help="size of a bucket")
    parser.add_argument("--port", type=int, default=29500 + os.getpid() % 1000)
    return parser.parse_args()


def main() -> None:
    """Start every rank."""
    wanted = options()
    wanted.out.mkdir(parents=True, exist_ok=True)
    mp.spawn(run_rank, args=(wanted,), nprocs=wanted.ranks, join=True)
    truth = {
        "schedule": "weight-reload",
        "ranks": wanted.ranks,
        "rounds": wanted.rounds,
        "buckets": wanted.ranks * wanted.rounds,
        "sources": [bucket % wanted.ranks for bucket in range(wanted.ranks * wanted.rounds)],
        "bucket_bytes": wanted.megabytes << 20,
        "counts_per_rank": {
            "onload": wanted.rounds,
            "broadcast": wanted.ranks * wanted.rounds,
            "reload": wanted.ranks * wanted.rounds,
        },
    }
    (wanted.out / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")


def run_rank(rank: int, wanted: argparse.Namespace) -> None:
    """One rank, from its process group to its trace."""
    device = join(rank, wanted.ranks, wanted.port)
    group = dist.new_group(list(range(wanted.ranks)), group_desc="CHECKPOINT_ENGINE")
    update = Update(
        rank,
        wanted.ranks,
        rounds=wanted.rounds,
        size=(wanted.megabytes << 20) // 2,
        device=device,
        group=group,
    )
    with PyTorch(wanted.out, rank, steps=1, shapes=True) as profiler:
        for _ in range(WARM_UP + 1):
            update.run()
            torch.cuda.synchronize()
            dist.barrier(group)
            profiler.step()
    dist.destroy_process_group()


class Update:
    """One rank's buffers: its shards in pinned memory, one H2D buffer, two IPC buffers, the weights."""

    def __init__(
        self, rank: int, ranks: int, *, rounds: int, size: int, device: torch.device, group: object
    ) -> None:
        self.rank, self.ranks, self.rounds, self.group = rank, ranks, rounds, group

        def bucket() -> torch.Tensor:
            return torch.zeros(size, dtype=torch.bfloat16, device=device)

        self.shards = [torch.randn(size, dtype=torch.bfloat16).pin_memory() for _ in range(rounds)]
        self.arrival, self.buffers = bucket(), [bucket(), bucket()]
        self.weights = [bucket() for _ in range(ranks * rounds)]
        self.h2d, self.load = torch.cuda.Stream(), torch.cuda.Stream()

    def run(self) -> None:
        """All rounds of one update."""
        main = torch.cuda.current_stream()
        reloaded: list[torch.cuda.Event] = []
        for turn in range(self.rounds):
            self.h2d.wait_stream(main)  # the H2D buffer is free once its owner has passed it on
            with torch.cuda.stream(self.h2d):
                self.arrival.copy_(self.shards[turn], non_blocking=True)
            main.wait_stream(self.h2d)
            for owner in range(self.ranks):
                bucket = turn * self.ranks + owner
                buffer = self.buffers[bucket % 2]
                if bucket >= 2:
                    main.wait_event(reloaded[bucket - 2])  # that reload has left this buffer
                if owner == self.rank:
                    buffer.copy_(self.arrival)
                dist.broadcast(buffer, src=owner, group=self.group)
                reloaded.append(self._reload(bucket, buffer))

    def _reload(self, bucket: int, buffer: torch.Tensor) -> torch.cuda.Event:
        self.load.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.load):
            self.weights[bucket].copy_(buffer)
            done = torch.cuda.Event()
            done.record()
        return done


if __name__ == "__main__":
    main()
