"""What Intarsia does, on the model in the package: convert, inspect, audit, load as stored, talk.

python tools/demo.py [--out FOLDER] [--question TEXT] [--max-tokens N]

Everything runs on the CPU and needs no download. The converted checkpoint is left in FOLDER to look at.
"""

import argparse
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import intarsia
from intarsia.cli.audit import show as show_audit
from intarsia.cli.generate import report
from intarsia.cli.output import gigabytes, write
from intarsia.cli.progress import terminal_progress
from intarsia.cli.tables import show_table
from intarsia.core.config import GenerationSettings
from intarsia.engine.text import ReasoningSplitter, begins_thinking
from intarsia.engine.text_model import TextModel

OUT = Path(__file__).parents[1] / "build" / "demo-fp4-local"
QUESTION = "Tell me a short story about a cat."


def main() -> int:
    arguments = read_arguments()
    began = time.perf_counter()
    shown: list[tuple[str, str]] = []

    with step("1. Convert the BF16 model to the FP4-Local layout", f"intarsia convert demo {arguments.out}"):
        if arguments.out.exists():
            shutil.rmtree(arguments.out)
        source = intarsia.open_checkpoint("demo")
        written = intarsia.convert("demo", arguments.out, recipe="fp4-local", progress=terminal_progress())
        sizes = f"{gigabytes(source.weight_bytes)} became {gigabytes(written.weight_bytes)}"
        print(sizes)
        shown.append(("converted", sizes))

    with step("2. Inspect what was written", f"intarsia inspect {arguments.out}"):
        shown.append(("inspected", inspect(arguments.out)))

    with step("3. Audit every tensor, scale and number of it", f"intarsia audit {arguments.out} --values"):
        audit = intarsia.audit(arguments.out, values=True, progress=terminal_progress())
        show_audit(audit)
        shown.append(("audited", f"{len(audit.violations)} violations in {audit.tensors:,} tensors"))

    with step("4. Load it as stored", ""):
        model = intarsia.load_text_model(arguments.out, progress=terminal_progress())
        print(f"window {model.window:,} tokens, {model.drafts} drafts a step by the MTP layer")

    with step("5. Talk", f'intarsia generate {arguments.out} "{arguments.question}" --chat'):
        shown += talk(model, arguments.question, arguments.max_tokens)

    print("\nWhat was shown")
    for name, what in shown:
        print(f"  {name + ':':<11} {what}")
    print(f"  {'in all:':<11} {time.perf_counter() - began:.1f} s")
    program = "intarsia" if shutil.which("intarsia") else Path(sys.executable).parent / "intarsia"
    print(f"\nNext: {program} chat demo, or {program} --help")
    return 1 if audit.violations else 0


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=OUT, help="folder to write (replaced if it exists)")
    parser.add_argument("--question", default=QUESTION)
    parser.add_argument("--max-tokens", type=int, default=96)
    arguments = parser.parse_args()
    if arguments.out != OUT and arguments.out.exists():
        parser.error(f"{arguments.out} exists")
    return arguments


@contextmanager
def step(title: str, command: str) -> Iterator[None]:
    """A heading, the command that does the same, and the time it took."""
    print(f"\n{title}")
    if command:
        print(f"$ {command}")
    began = time.perf_counter()
    yield
    print(f"({time.perf_counter() - began:.1f} s)", flush=True)


def inspect(path: Path) -> str:
    """Show the formats of a checkpoint; returns their names."""
    summary = intarsia.inspect(path)
    rows = [
        (row.format, row.codec or "-", f"{row.modules:,}", f"{row.elements:,}", gigabytes(row.bytes))
        for row in summary.formats
    ]
    show_table("Formats", ("format", "scales", "modules", "weights", "bytes"), rows)
    return ", ".join(dict.fromkeys(row.format for row in summary.formats))


def talk(model: TextModel, question: str, max_tokens: int) -> list[tuple[str, str]]:
    """Stream a reply with drafts, then draw it again without them and compare."""
    settings = replace(model.defaults, max_tokens=max_tokens, seed=1)
    messages = [{"role": "user", "content": question}]
    print(f"user: {question}\nmodel: ", end="", flush=True)
    drafted = model.chat(messages, settings)
    splitter = ReasoningSplitter(begins_thinking(model.render(messages)))
    for delta in drafted:
        for part, text in splitter.push(delta.text):
            write(text, dim=part == "thinking")
    for part, text in splitter.finish():
        write(text, dim=part == "thinking")
    result = drafted.result
    print(f"\n{report(result)}")
    same = compare_with_plain(model, messages, settings, result.tokens)
    speed = (len(result.tokens) - 1) / result.timing.decode if result.timing.decode else 0.0
    return [
        ("replied", f"{len(result.tokens)} tokens at {speed:.1f} tokens/s in {result.steps} steps"),
        ("drafts", f"{sum(result.accepted)} of {sum(result.drafted)} accepted; without drafts {same}"),
    ]


def compare_with_plain(
    model: TextModel, messages: list[dict[str, str]], settings: GenerationSettings, tokens: tuple[int, ...]
) -> str:
    """Draw the reply again, a token a step."""
    drafts, model.drafts = model.drafts, 0
    plain = model.chat(messages, settings).result
    model.drafts = drafts
    if plain.tokens != tokens:
        raise SystemExit("the reply differs without drafts: this is a bug")
    return f"the same {len(tokens)} tokens took {plain.steps} steps"


if __name__ == "__main__":
    sys.exit(main())
