"""The recorder in real training loops, on the CPU: run where the package is installed, skipped where it is not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tracekit

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

PLAIN = """
import torch, tracekit
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with tracekit.profiler({folder!r}, steps=(2, 2)) as recorder:
    for _ in range(6):
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        recorder.step()
"""

TRANSFORMERS = """
import torch, tracekit
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
data = [dict(input_ids=torch.arange(8), labels=torch.arange(8)) for _ in range(12)]
arguments = TrainingArguments(
    {folder!r} + "-hf", max_steps=6, per_device_train_batch_size=2, use_cpu=True, report_to=[], save_strategy="no"
)
callback = tracekit.record.transformers_callback({folder!r}, steps=(2, 2))
Trainer(LlamaForCausalLM(config), arguments, train_dataset=data, callbacks=[callback]).train()
"""

LIGHTNING = """
import torch, tracekit
import lightning.pytorch as lightning

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)

    def training_step(self, batch, number):
        return self.inner(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

data = torch.utils.data.DataLoader(torch.randn(12, 8), batch_size=2)
callback = tracekit.record.lightning_callback({folder!r}, steps=(2, 2))
lightning.Trainer(
    max_steps=6, accelerator="cpu", callbacks=[callback], logger=False, enable_checkpointing=False,
    enable_progress_bar=False,
).fit(Model(), data)
"""

ACCELERATE = """
import torch, tracekit
from accelerate import Accelerator
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.DataLoader(torch.randn(24, 8), batch_size=2)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
with tracekit.profiler({folder!r}, steps=(2, 2)) as recorder:
    for batch in data:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).sum())
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            recorder.step()
"""

PROGRAMS = {
    "torch": PLAIN,
    "transformers": TRANSFORMERS,
    "lightning": LIGHTNING,
    "accelerate": ACCELERATE,
}


@pytest.mark.parametrize("package", PROGRAMS)
def test_the_asked_steps_are_recorded_under_their_own_numbers(package, tmp_path):
    pytest.importorskip("torch", exc_type=ImportError)
    pytest.importorskip(package, exc_type=ImportError)
    folder = tmp_path / "traces"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAMS[package].format(folder=str(folder))],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TOKENIZERS_PARALLELISM": "false",
            "CUDA_VISIBLE_DEVICES": "",  # the same on a machine with a GPU
        },
    )
    assert done.returncode == 0, done.stderr
    assert "tracekit: no GPU is visible" in done.stderr
    assert "tracekit: recorded 2 steps" in done.stderr
    assert tracekit.load(folder).rank(0).events["step"].drop_nulls().unique().sort().to_list() == [
        2,
        3,
    ]
