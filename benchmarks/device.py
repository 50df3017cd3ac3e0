"""Time, memory and the peak of a device."""

import time
from typing import NamedTuple

import torch

from lmrl.training.flops import data_sheet_peak

__all__ = ["Peak", "Stopwatch", "Timing", "matmul_peak", "now", "peak"]


class Peak(NamedTuple):
    """What a device can do."""

    flops: float
    """Per second."""
    source: str


class Timing(NamedTuple):
    """What a stopwatch read."""

    seconds: float
    memory: float | None
    """Bytes at the most, above what the device held when the stopwatch was made; None on a processor."""


class Stopwatch:
    """Seconds and memory between `start` and `stop`. Make it before what is measured moves to the device."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._on_gpu = torch.device(device).type == "cuda"
        self._before = torch.cuda.memory_allocated(device) if self._on_gpu else 0
        self._began = 0.0

    def start(self) -> None:
        """Begin, when all that was asked of the device before is done."""
        if self._on_gpu:
            torch.cuda.reset_peak_memory_stats(self._device)
        self._began = now(self._device)

    def stop(self) -> Timing:
        """End, when all that was asked of the device is done."""
        seconds = now(self._device) - self._began
        memory = torch.cuda.max_memory_allocated(self._device) - self._before if self._on_gpu else None
        return Timing(seconds, memory)


def now(device: str) -> float:
    """Seconds of wall clock, when all that was asked of the device is done."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def peak(device: str, half: bool, side: int = 4_096) -> Peak:
    """FLOP/s in bfloat16 (``half``) or float32: of the data sheet, or measured where there is none for it.

    Args:
        device: as torch calls it.
        half: bfloat16.
        side: of the square matrices, where it is measured.
    """
    if torch.device(device).type == "cuda" and half:
        name = torch.cuda.get_device_name(device)
        known = data_sheet_peak(name)
        if known is not None:
            return Peak(known, f"{name}, data sheet, dense bfloat16")
    kind = torch.bfloat16 if half else torch.float32
    return Peak(matmul_peak(device, kind, side), f"the best of ten products of matrices of {side:,} x {side:,}")


def matmul_peak(device: str, dtype: torch.dtype, side: int) -> float:
    """FLOP/s of the best of ten products of square matrices, after one that is not counted."""
    one, other = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    one @ other
    times = []
    for _ in range(10):
        began = now(device)
        one @ other
        times.append(now(device) - began)
    return 2 * side**3 / min(times)
