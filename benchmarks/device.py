"""Time, memory and the peak of a device."""

import time
from typing import NamedTuple

import torch

from lmrl.training.flops import data_sheet_peak

__all__ = ["Peak", "Stopwatch", "Timing", "matmul_peak", "now", "peak"]


class Peak(NamedTuple):
    """The peak speed of a device and its source."""

    flops: float
    """FLOP/s."""
    source: str


class Timing(NamedTuple):
    """The time, in seconds, and the memory that a stopwatch measured."""

    seconds: float
    memory: float | None
    """Peak bytes above what the device held when the stopwatch was created; None on a CPU."""


class Stopwatch:
    """Measures seconds and memory between `start` and `stop`. Create it before the model moves to the device."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._on_gpu = torch.device(device).type == "cuda"
        self._before = torch.cuda.memory_allocated(device) if self._on_gpu else 0
        self._began = 0.0

    def start(self) -> None:
        """Start after the device has finished all earlier work."""
        if self._on_gpu:
            torch.cuda.reset_peak_memory_stats(self._device)
        self._began = now(self._device)

    def stop(self) -> Timing:
        """Stop after the device has finished all work."""
        seconds = now(self._device) - self._began
        memory = torch.cuda.max_memory_allocated(self._device) - self._before if self._on_gpu else None
        return Timing(seconds, memory)


def now(device: str) -> float:
    """Return the wall-clock time in seconds after the device has finished all work."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def peak(device: str, half: bool, side: int = 4_096) -> Peak:
    """Return the FLOP/s in bfloat16 (``half``) or float32: from the data sheet, or measured if there is none for it.

    Args:
        device: its name in torch.
        half: bfloat16 instead of float32.
        side: the size of the square matrices if the peak is measured.
    """
    if torch.device(device).type == "cuda" and half:
        name = torch.cuda.get_device_name(device)
        known = data_sheet_peak(name)
        if known is not None:
            return Peak(known, f"{name}, data sheet, dense bfloat16")
    kind = torch.bfloat16 if half else torch.float32
    return Peak(matmul_peak(device, kind, side), f"the best of ten products of matrices of {side:,} x {side:,}")


def matmul_peak(device: str, dtype: torch.dtype, side: int) -> float:
    """Return the FLOP/s of the best of ten products of square matrices, after one that is not counted."""
    one, other = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    one @ other
    times = []
    for _ in range(10):
        began = now(device)
        one @ other
        times.append(now(device) - began)
    return 2 * side**3 / min(times)
