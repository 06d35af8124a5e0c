"""BytePS: gradient communication for data-parallel training through CPU summation servers.

Import the layer of your framework, for example `import byteps.torch as bps`. This package itself imports no framework.
"""

from __future__ import annotations

__all__ = ["__version__"]


def _read_version() -> str:
    """VERSION at the top of the source tree is the one source; an installation has it in its metadata."""
    from pathlib import Path

    root = Path(__file__).resolve().parents[2]
    if (root / "include/byteps/byteps.h").is_file():  # a source tree
        return (root / "VERSION").read_text(encoding="ascii").strip()
    from importlib.metadata import version as installed_version

    return installed_version("byteps")


def __getattr__(name: str) -> str:
    """The version is read when it is asked for: the commands begin sooner."""
    if name != "__version__":
        raise AttributeError(f"module 'byteps' has no attribute '{name}'")
    globals()[name] = _read_version()
    return globals()[name]
