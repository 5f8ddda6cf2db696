"""Callbacks for trainers that own the training loop (Hugging Face, Lightning)."""

from __future__ import annotations

import importlib
import os
from typing import Any

from tracekit.errors import OptionError
from tracekit.record.recorder import Recorder, profiler


class _TrainingRecorder:
    """Recorder that starts with the training and stops with it."""

    def __init__(self, folder: str | os.PathLike[str], options: dict[str, Any]) -> None:
        self._folder, self._options = folder, options
        self._recorder: Recorder | None = None

    def begin(self) -> None:
        self._recorder = profiler(self._folder, **self._options).__enter__()

    def step(self) -> None:
        if self._recorder is not None:
            self._recorder.step()

    def end(self) -> None:
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.__exit__(None, None, None)


def transformers_callback(folder: str | os.PathLike[str], **options: Any) -> Any:
    """Return a callback for Hugging Face's ``Trainer``; takes what ``profiler`` takes. A step is an optimizer step.

    >>> try:
    ...     callback = transformers_callback("traces", steps=(10, 3))
    ... except OptionError as error:  # where it is not installed
    ...     assert "transformers" in str(error)
    """
    base = _import_base_class("TrainerCallback", ("transformers",), package="transformers")
    recorder = _TrainingRecorder(folder, options)

    class TracekitCallback(base):  # type: ignore[misc,valid-type]
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            recorder.begin()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            recorder.step()

        def on_train_end(self, *_: Any, **__: Any) -> None:
            recorder.end()

    return TracekitCallback()


def lightning_callback(folder: str | os.PathLike[str], **options: Any) -> Any:
    """Return a callback for Lightning's ``Trainer``; takes what ``profiler`` takes. A step is a training batch.

    >>> try:
    ...     callback = lightning_callback("traces", steps=(10, 3))
    ... except OptionError as error:  # where it is not installed
    ...     assert "lightning" in str(error)
    """
    base = _import_base_class("Callback", ("lightning.pytorch", "pytorch_lightning"), package="lightning")
    recorder = _TrainingRecorder(folder, options)

    class TracekitCallback(base):  # type: ignore[misc,valid-type]
        def on_train_start(self, *_: Any) -> None:
            recorder.begin()

        def on_train_batch_end(self, *_: Any) -> None:
            recorder.step()

        def on_train_end(self, *_: Any) -> None:
            recorder.end()

        def on_exception(self, *_: Any) -> None:
            recorder.end()

    return TracekitCallback()


def _import_base_class(name: str, modules: tuple[str, ...], *, package: str) -> Any:
    """Return the class *name* of the first module that is installed."""
    for module in modules:
        try:
            return getattr(importlib.import_module(module), name)
        except ImportError:
            continue
    raise OptionError(f"this callback needs {package}", hint=f"pip install {package}")
