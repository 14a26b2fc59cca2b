"""The command line: reads the arguments, runs one command, turns errors into messages and exit codes.

Exit codes: 0 fine, 1 violations or a failed check, 2 wrong use; 130 after Ctrl-C, 141 when the reader of the
output has gone.
"""

import inspect
import io
import os
import sys
from collections.abc import Sequence
from types import NoneType
from typing import Annotated, Any, Protocol, Union, get_args

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from intarsia.cli.audit import Audit
from intarsia.cli.bench import Bench
from intarsia.cli.chat import Chat
from intarsia.cli.check import Check
from intarsia.cli.convert import Convert
from intarsia.cli.gate import Gate
from intarsia.cli.generate import Generate
from intarsia.cli.helping import folded_help, meant
from intarsia.cli.inspect import Inspect
from intarsia.cli.load import Load
from intarsia.cli.manifest import ManifestCommand
from intarsia.cli.output import INTERRUPTED, describe_error, emit_json, note
from intarsia.cli.plan import PlanCommand
from intarsia.cli.quality import QualityCommand
from intarsia.cli.ranks import remember
from intarsia.cli.receipt import ReceiptCommand
from intarsia.cli.report import Report
from intarsia.cli.serve import Serve
from intarsia.cli.synth import Synth
from intarsia.cli.tune import Tune
from intarsia.core.errors import IntarsiaError, UsageError

FINE, FAILED, WRONG_USE, NO_READER = 0, 1, 2, 141

DESCRIPTION = (
    "Reads, converts, checks and runs models whose every module has its own number format. "
    "The word demo stands for the small trained model that comes with the package."
)


VALUES: dict[Any, str] = {int: "INT", float: "FLOAT", str: "STR"}


class Command(Protocol):
    """A subcommand: a frozen dataclass of its options."""

    def run(self) -> int:
        """Do it; the exit code."""
        ...


COMMANDS: dict[str, type[Command]] = {
    "inspect": Inspect,
    "audit": Audit,
    "manifest": ManifestCommand,
    "plan": PlanCommand,
    "load": Load,
    "convert": Convert,
    "check": Check,
    "gate": Gate,
    "generate": Generate,
    "chat": Chat,
    "serve": Serve,
    "synth": Synth,
    "tune": Tune,
    "bench": Bench,
    "quality": QualityCommand,
    "report": Report,
    "receipt": ReceiptCommand,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line (without the program's name) and return its exit code; never raises."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    wants_json = "--json" in words
    if sys.stdout.encoding.lower() != "utf-8" and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a model's text may not fit the terminal's encoding
    try:
        if words == ["--version"]:
            import intarsia
            from intarsia.core.provenance import sources_sha256

            print(f"intarsia {intarsia.__version__}\nsources {sources_sha256()}")
            return FINE
        remember(words)
        command = parse(words)
        code = command.run()
        sys.stdout.flush()
        return code
    except SystemExit as exit_request:
        return exit_request.code if isinstance(exit_request.code, int) else WRONG_USE
    except IntarsiaError as error:
        note(f"intarsia: {error}")
        if wants_json:
            emit_json(describe_error(error))
        return WRONG_USE if wrong_use(error) else FAILED
    except KeyboardInterrupt:
        note("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # what is still buffered must not be written again when the interpreter ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NO_READER


def wrong_use(error: IntarsiaError) -> bool:
    """True for settings that cannot be meant, names that nothing has and a path that is no checkpoint."""
    if isinstance(error, UsageError):
        return True
    # these layers are slow to import, and loaded by now
    from intarsia.checkpoint.errors import NotACheckpointError
    from intarsia.selection.errors import RecipeNameError

    return isinstance(error, NotACheckpointError | RecipeNameError)


def parse(words: Sequence[str]) -> Command:
    """The command a line asks for. Raises SystemExit, like argparse, for help and for wrong lines."""
    choices = tuple(
        Annotated[command, tyro.conf.subcommand(name, prefix_name=False, description=about)]
        for name, command in COMMANDS.items()
        # all that there is to say of the one that is meant, a line of each in the list
        for about in [whole(command) if words[:1] == [name] else first_line(command)]
    )
    union: Any = Union[choices]  # noqa: UP007  (built from a table)
    try:
        with folded_help():
            parsed: Command = tyro.cli(
                union,
                args=list(words),
                prog="intarsia",
                description=DESCRIPTION,
                config=(tyro.conf.FlagCreatePairsOff,),
                registry=REGISTRY,
            )
    except SystemExit as refusal:
        near = meant(words, COMMANDS) if refusal.code else None
        if near is not None:
            note(f"Did you mean `intarsia {near}`?")
        raise
    return parsed


def value_or_absent(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """How a value that may be absent is read and shown: as the value, since nobody writes None."""
    kinds = get_args(info.type)
    if len(kinds) != 2 or kinds[1] is not NoneType or kinds[0] not in VALUES:
        return None
    kind = kinds[0]
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=VALUES[kind],
        instance_from_str=lambda words: kind(words[0]),
        is_instance=lambda value: value is None or isinstance(value, kind),
        str_from_instance=lambda value: [str(value)],
    )


REGISTRY = ConstructorRegistry()
REGISTRY.primitive_rule(value_or_absent)


def whole(command: type[Command]) -> str:
    """All of a command's docstring."""
    return inspect.cleandoc(command.__doc__ or "")


def first_line(command: type[Command]) -> str:
    """What a command's docstring says first."""
    return (command.__doc__ or "").partition("\n")[0]


if __name__ == "__main__":
    sys.exit(main())
