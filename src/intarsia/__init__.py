"""Intarsia reads, plans, converts, proves and serves models whose every module has its own number format.

The functions below are imported when first used, so that `import intarsia` and `intarsia --help` stay quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from intarsia.api import (
        audit,
        convert,
        explain,
        generate,
        inspect,
        load,
        load_text_model,
        load_weights,
        make_manifest,
        open_checkpoint,
        plan,
        read_manifest,
        reload_weights,
        verify_export,
    )
    from intarsia.core.config import EngineSettings, GenerationSettings, LoadSettings, SamplingSettings
    from intarsia.core.errors import IntarsiaError, UsageError, Violation, ViolationsError

__all__ = [
    "EngineSettings",
    "GenerationSettings",
    "IntarsiaError",
    "LoadSettings",
    "SamplingSettings",
    "UsageError",
    "Violation",
    "ViolationsError",
    "audit",
    "convert",
    "explain",
    "generate",
    "inspect",
    "load",
    "load_text_model",
    "load_weights",
    "make_manifest",
    "open_checkpoint",
    "plan",
    "read_manifest",
    "reload_weights",
    "verify_export",
]

_HOMES = {
    "intarsia.core.config": ("EngineSettings", "GenerationSettings", "LoadSettings", "SamplingSettings"),
    "intarsia.core.errors": ("IntarsiaError", "UsageError", "Violation", "ViolationsError"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("intarsia")
    if name not in __all__:
        raise AttributeError(f"module 'intarsia' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF.get(name, "intarsia.api")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, "__version__"])
