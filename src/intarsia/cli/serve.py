"""intarsia serve: an OpenAI-compatible HTTP service."""

from dataclasses import field, make_dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from intarsia.cli.explain import explain
from intarsia.cli.options import CheckpointPath
from intarsia.cli.progress import terminal_progress
from intarsia.cli.ranks import start_ranks
from intarsia.server.options import Option, options, settings_from

_ABOUT = """Serve a model over HTTP, for the `openai` client and everything that speaks its language.

Listens on this machine alone unless told otherwise. The log is one JSON object a line on standard error; the
first names the address. SIGTERM lets running replies end, a second one ends at once, SIGUSR1 dumps stacks.
"""

_EXPLAIN = "Serve nothing; print how every weight would run, with which kernel and why, from headers alone."
_ABSENT = (None, False, ())


def _run(command: Any) -> int:
    """Read the settings, load, serve; returns after a drain."""
    given = {option.field: getattr(command, option.field) for option in options() if option.flag}
    # by identity: a port of 0 was given, too
    given = {
        name: value for name, value in given.items() if not any(value is not_given for not_given in _ABSENT)
    }
    settings = settings_from(Path(command.config) if command.config else None, given)
    if command.explain:
        return explain(
            command.path,
            settings.device,
            settings.dtype,
            tuning=settings.tuning,
            expert_scales=settings.expert_scales,
        )
    code = start_ranks(settings)
    if code is not None:
        return code

    from intarsia.server.start import serve

    serve(command.path, settings, progress=terminal_progress())
    return 0


def _flag(option: Option) -> tuple[str, Any, Any]:
    """A setting as a field of the command: absent unless given, so that the file's value is seen."""
    default = "" if option.default in (None, (), False) else f"(default: {option.default})"
    kind: Any = option.kind
    arg = tyro.conf.arg(
        name=option.name, help=option.help, metavar=kind.__name__.upper(), help_behavior_hint=default
    )
    if option.several:
        append: Any = tyro.conf.UseAppendAction[tuple[kind, ...]]
        return option.field, Annotated[append, arg], field(default=())
    if option.kind is bool:
        switch = tyro.conf.arg(name=option.name, help=option.help)
        return option.field, Annotated[bool, switch], field(default=False)
    return option.field, Annotated[kind | None, arg], field(default=None)


def _command() -> type[Any]:
    about = "TOML file with settings; flags win over it. Names and meanings are those of the flags."
    config = tyro.conf.arg(name="config", help=about, metavar="FILE", help_behavior_hint="")
    switch = tyro.conf.arg(name="explain", help=_EXPLAIN)
    path = tyro.conf.arg(help="Folder of a checkpoint, or `demo`.")
    fields: list[Any] = [
        ("path", Annotated[CheckpointPath, path]),
        ("config", Annotated[str | None, config], field(default=None)),
        ("explain", Annotated[bool, switch], field(default=False)),
        *(_flag(option) for option in options() if option.flag),
    ]
    made = make_dataclass("Serve", fields, frozen=True, kw_only=True, namespace={"run": _run})
    made.__doc__ = _ABOUT
    return made


Serve: type[Any] = _command()
