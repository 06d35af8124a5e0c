"""What `import torch` runs in every process where this package is installed (entry point group "torch.backends"): it
tells torch.distributed the name "byteps". Nothing else is imported before a group of that name is made.

`import byteps.torch` does the same. TORCH_DEVICE_BACKEND_AUTOLOAD=0 turns torch's way off.
"""

from __future__ import annotations

from typing import Any

NAME = "byteps"


def load() -> None:
    """Registers the backend; harmless when repeated, and without effect where torch has no torch.distributed."""
    import torch.distributed as dist

    if dist.is_available() and NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _create, devices=["cpu", "cuda"])


def _create(store: Any, rank: int, size: int, timeout: Any) -> Any:
    from byteps.torch.backend import create

    return create(NAME, store, rank, size, timeout)
