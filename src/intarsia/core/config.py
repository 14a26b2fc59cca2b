"""The settings of loading, running and drawing, as frozen dataclasses that check themselves.

The command line and a settings file are both read from these; nothing else decides a default.
Importing this module stays cheap: it knows neither torch nor a checkpoint.
"""

from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar

from intarsia.core.errors import UsageError

Part = TypeVar("Part")
Device = str
DataType = Literal["float32", "bfloat16"]
CacheType = Literal["auto", "bfloat16", "fp8"]
CACHE_TYPES: tuple[CacheType, ...] = ("auto", "bfloat16", "fp8")
ScaleForm = Literal["expanded", "resident"]
SCALE_FORMS: tuple[ScaleForm, ...] = ("expanded", "resident")

# Below this a division by the temperature would leave float32 logits no room; 0 means greedy.
SMALLEST_TEMPERATURE = 1e-4
LARGEST_TEMPERATURE = 100.0
LARGEST_SEED = 2**64 - 1
CPU_PROMPT_ROWS, GPU_PROMPT_ROWS = 1024, 8192
"""Rows of a prompt that run at once. A GPU reads the experts of a layer once for all of them."""
MOST_RANKS = 64


def check_integer(field: str, value: object, low: int, high: int | None = None) -> None:
    """Refuse anything but an integer in low..high (a bool is not an integer here).

    Raises `UsageError` naming the field.
    """
    expected = f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(field, found=f"{value!r}", expected=expected)
    if value < low or (high is not None and value > high):
        raise UsageError(field, found=str(value), expected=expected)


def check_number(field: str, value: object, low: float, high: float, *, open_low: bool = False) -> None:
    """Refuse anything but a finite number in low..high; `open_low` excludes the lower end.

    Raises `UsageError` naming the field.
    """
    expected = (
        f"a number {'above' if open_low else 'from'} {low:g} {'and at most' if open_low else 'to'} {high:g}"
    )
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(field, found=f"{value!r}", expected=expected)
    # NaN fails the comparison too
    if not low <= value <= high or (open_low and value == low):
        raise UsageError(field, found=f"{value}", expected=expected)


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """How a token is drawn from logits. Cuts act in this order: top_k, top_p, min_p."""

    temperature: float = 0.0
    """0 draws the likeliest token (greedy); else logits are divided by it."""
    top_k: int = 0
    """Keep this many of the likeliest tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the fewest likeliest tokens whose probabilities reach this sum; 1 keeps all."""
    min_p: float = 0.0
    """Keep tokens at least this fraction as likely as the likeliest; 0 keeps all."""
    seed: int | None = None
    """Key of the noise, 0 to 2**64 - 1; without one it follows from the prompt, so that a request repeats."""

    def __post_init__(self) -> None:
        check_number("temperature", self.temperature, 0.0, LARGEST_TEMPERATURE)
        if 0 < self.temperature < SMALLEST_TEMPERATURE:
            raise UsageError(
                "temperature",
                found=f"{self.temperature}",
                expected=f"0 or a number from {SMALLEST_TEMPERATURE:g} to {LARGEST_TEMPERATURE:g}",
                action="use 0 for the likeliest token",
            )
        check_integer("top_k", self.top_k, 0)
        check_number("top_p", self.top_p, 0.0, 1.0, open_low=True)
        check_number("min_p", self.min_p, 0.0, 1.0)
        if self.seed is not None:
            check_integer("seed", self.seed, 0, LARGEST_SEED)

    @property
    def greedy(self) -> bool:
        """True when no noise takes part."""
        return self.temperature == 0

    @property
    def cut(self) -> bool:
        """True when some tokens are excluded before the noise is added."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0


MOST_STOPS = 16
LONGEST_STOP = 1000


@dataclass(frozen=True, slots=True)
class GenerationSettings(SamplingSettings):
    """How a reply is drawn and where it ends."""

    max_tokens: int = 256
    """Most tokens of the reply; the window may end it sooner."""
    stop: tuple[str, ...] = ()
    """The reply ends before the first of these strings; they are not part of its text."""
    ignore_eos: bool = False
    """Go on past the checkpoint's end-of-text tokens."""

    def __post_init__(self) -> None:
        SamplingSettings.__post_init__(self)
        check_integer("max_tokens", self.max_tokens, 1)
        if not isinstance(self.stop, tuple) or any(not isinstance(text, str) for text in self.stop):
            raise UsageError("stop", found=f"{self.stop!r}", expected="a tuple of strings")
        if len(self.stop) > MOST_STOPS:
            raise UsageError("stop", found=f"{len(self.stop)} strings", expected=f"at most {MOST_STOPS}")
        for text in self.stop:
            if not 1 <= len(text) <= LONGEST_STOP:
                expected = f"strings of 1 to {LONGEST_STOP} characters"
                raise UsageError("stop", found=f"one of {len(text)} characters", expected=expected)
        if not isinstance(self.ignore_eos, bool):
            raise UsageError("ignore_eos", found=f"{self.ignore_eos!r}", expected="true or false")


def part_of(settings: Any, kind: type[Part], **changes: Any) -> Part:
    """Settings of a kind: the fields that `settings` have of it, `changes` in their place."""
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    own = {field.name: getattr(settings, field.name) for field in fields(settings) if field.name in names}
    return kind(**(own | changes))


@dataclass(frozen=True)
class LoadSettings:
    """Where a model is placed and in what it computes; stored weights keep their formats."""

    device: Device = "cpu"
    """Torch device the weights are placed on, such as cpu or cuda:0."""
    dtype: DataType = "float32"
    """Type of activations; weights are decoded to it inside an operation."""
    threads: int | None = None
    """CPU threads for computing; without a number one for a small network, else torch's own choice."""

    def __post_init__(self) -> None:
        if not isinstance(self.device, str) or not self.device:
            raise UsageError(
                "device", found=f"{self.device!r}", expected="a torch device such as cpu or cuda:0"
            )
        if self.dtype not in ("float32", "bfloat16"):
            raise UsageError("dtype", found=f"{self.dtype!r}", expected="float32 or bfloat16")
        if self.threads is not None:
            check_integer("threads", self.threads, 1)


@dataclass(frozen=True)
class EngineSettings(LoadSettings):
    """What one stream may use: how long it may grow, how far ahead it may guess."""

    window: int | None = None
    """Largest number of tokens of prompt and reply together; the model's own limit without a number."""
    drafts: int = 3
    """Most tokens guessed ahead in a step by the model's MTP layer; 0 turns drafting off."""
    kv_cache_dtype: CacheType = "auto"
    """How cached latents are stored: auto in the type of activations, bfloat16, or fp8, which takes half of
    bfloat16. Anything narrower than activations loses precision."""
    expert_scales: ScaleForm = "expanded"
    """Block scales of NVFP4 experts in a GPU's memory: expanded, or resident in a compressed form of about
    56 % of their bytes, which long prompts write out again, layer by layer, and take longer by that."""
    tuning: str = "auto"
    """Tuned configurations of a GPU's kernels: auto, the device's own file if `intarsia tune` wrote one; off;
    or a file by name, which must then hold for this device. They change no bit."""
    tp: int = 1
    """Ranks the model is spread over; on one host they are started together."""
    rank: int | None = None
    """Which of the ranks this is, where each is started by itself; else they are started here."""
    master: str = "127.0.0.1"
    """Address at which the ranks meet: that of rank 0."""
    master_port: int = 29551
    """Port at which the ranks meet."""
    ring: str | None = None
    """PREV,NEXT: addresses of the ranks before and after this one, where no address reaches all ranks; at
    the ends of a line one is empty. Every rank then listens at its own `master_port`."""
    rank_timeout: float = 60.0
    """Seconds a rank waits for another one before it counts as lost."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.tuning, str) or not self.tuning:
            raise UsageError("tuning", found=f"{self.tuning!r}", expected="auto, off or a file")
        check_integer("tp", self.tp, 1, MOST_RANKS)
        if self.rank is not None:
            check_integer("rank", self.rank, 0, self.tp - 1)
        check_integer("master_port", self.master_port, 1, 65535)
        if self.ring is not None and (self.rank is None or self.tp == 1):
            raise UsageError(
                "ring", found="no rank of several", expected="--tp and --rank as well, on each rank by itself"
            )
        check_number("rank_timeout", self.rank_timeout, 0.1, 86400.0)
        if self.window is not None:
            check_integer("window", self.window, 2)
        check_integer("drafts", self.drafts, 0, 64)
        if self.kv_cache_dtype not in CACHE_TYPES:
            raise UsageError(
                "kv_cache_dtype",
                found=f"{self.kv_cache_dtype!r}",
                expected=f"one of {', '.join(CACHE_TYPES)}",
            )
        if self.expert_scales not in SCALE_FORMS:
            raise UsageError(
                "expert_scales",
                found=f"{self.expert_scales!r}",
                expected=f"one of {', '.join(SCALE_FORMS)}",
            )
