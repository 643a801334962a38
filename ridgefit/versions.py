"""What ran a result: library versions and the machine, without host names or paths."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

LIBRARIES = (
    "ridgefit",
    "torch",
    "transformers",
    "huggingface_hub",
    "safetensors",
    "datasets",
    "numpy",
    "scipy",
    "pydantic",
)


def library_versions() -> dict[str, str]:
    """Versions of Python and of the installed libraries a result depends on, read from their metadata.

    Nothing is imported for it; a library that is not installed is left out.
    """
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, str | int | None]:
    """CPU name, cores this process may use, GPU name and platform.

    The GPU is named only if this process has already loaded torch and torch sees one; loading torch
    just to ask would cost seconds.
    """
    return {
        "cpu": _cpu_name(),
        "cores": available_cores(),
        "gpu": _gpu_name(),
        "platform": f"{platform.system()} {platform.machine()}",
    }


def available_cores() -> int:
    """Cores this process may run on, which in a container is fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def peak_memory(device: str) -> int:
    """Most bytes held so far: allocated on a "cuda" device, else resident in this process; 0 if unknown.

    Args:
        device: type of the device that was used.
    """
    torch = sys.modules.get("torch")
    if device == "cuda" and torch is not None:
        return int(torch.cuda.max_memory_allocated())
    try:
        import resource
    except ImportError:  # Windows
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in {"model name", "Model"}:
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _gpu_name() -> str | None:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    return str(torch.cuda.get_device_name())
