"""Facts that go with measured figures: processor, GPU, threads, versions, commit; no names and no paths."""

import os
import platform
import re
import subprocess
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

__all__ = ["facts", "slug"]

_PACKAGES = ("lmrl", "torch", "transformers", "lightning")
_ROOT = Path(__file__).parent.parent


def facts(device: str = "cpu") -> dict[str, Any]:
    """Return the facts that go with figures, JSON-like. Call it before measuring, which itself loads the machine.

    Args:
        device: what the figures were measured on, as torch calls it; a GPU is named only if they were measured on it.
    """
    machine: dict[str, Any] = {
        "cpu": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
    }
    versions = {"python": platform.python_version(), **_versions()}
    if torch.device(device).type == "cuda":
        machine["gpu"] = torch.cuda.get_device_name(device)
        versions["cuda"] = str(torch.version.cuda)
    date = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    return {"machine": machine, "versions": versions, "commit": _commit(), "date": date, "load": _load()}


def slug(machine: dict[str, Any]) -> str:
    """Return the name of the machine in the names of files: its GPU, or its processor and cores."""
    words = machine.get("gpu") or f"{machine['cpu']} {machine['cores']} cores"
    return re.sub(r"[^a-z0-9]+", "-", re.sub(r"\((R|TM)\)", "", words).lower()).strip("-")


def _load() -> float | None:
    """Return the load average of the last minute, which shows how busy the machine is with other things."""
    return round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None


def _processor() -> str:
    file = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*: (.+)$", file.read_text(), re.MULTILINE) if file.is_file() else None
    return found[1].strip() if found else platform.processor() or platform.machine()


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # a checkout that is on the path but not installed
            continue
    return found


def _commit() -> str | None:
    """Return the commit, with a plus if files other than results differ from it, or None outside of a repository."""
    try:
        head = _git("rev-parse", "--short=12", "HEAD").stdout.strip()
        changed = _git("status", "--porcelain", "--", ".", ":!benchmarks/results").stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{head}+" if changed else head


def _git(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["git", "-C", str(_ROOT), *words], capture_output=True, text=True, check=True)
