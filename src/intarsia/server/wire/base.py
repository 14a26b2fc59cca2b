"""What the wire structures have in common: strictness and bounds.

Every integer has a bound and every list a length, so that no request can ask for an amount of work or memory
that was not foreseen. Numbers that are not finite never get this far: reading the body refuses them.
"""

from typing import Annotated, Any

from msgspec import Meta, Struct

LARGEST_COUNT = 1 << 31
LARGEST_TOKEN = (1 << 24) - 1
MOST_STOPS = 16
LONGEST_STOP = 1000
LARGEST_N = 64
MOST_PROMPTS = 64
MOST_MESSAGES = 4096
MOST_PARTS = 1024
MOST_TOOLS = 256
MOST_CALLS = 256
MOST_BIASES = 1024
MOST_STOP_IDS = 64


class Asked(Struct, forbid_unknown_fields=True):
    """A part of a request; an unknown field is refused, never ignored."""


class Told(Struct):
    """A part of a reply."""


class ToldIfAny(Struct, omit_defaults=True):
    """A part of a reply whose empty fields are left out."""


Json = dict[str, Any]
TokenCount = Annotated[int, Meta(ge=0, le=LARGEST_COUNT)]
TokenId = Annotated[int, Meta(ge=0, le=LARGEST_TOKEN)]
Temperature = Annotated[float, Meta(ge=0, le=100)]
Share = Annotated[float, Meta(ge=0, le=1)]
TopK = Annotated[int, Meta(ge=-1, le=LARGEST_COUNT)]
TopLogprobs = Annotated[int, Meta(ge=0, le=20)]
Choices = Annotated[int, Meta(ge=1, le=LARGEST_N)]
Priority = Annotated[int, Meta(ge=-LARGEST_COUNT, le=LARGEST_COUNT)]
Additive = Annotated[float, Meta(ge=-2, le=2)]
Multiplicative = Annotated[float, Meta(gt=0, le=10)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
Stop = Annotated[str, Meta(min_length=1, max_length=LONGEST_STOP)]
Name = Annotated[str, Meta(min_length=1, max_length=512)]
FunctionName = Annotated[str, Meta(min_length=1, max_length=64)]
CallId = Annotated[str, Meta(max_length=256)]
Salt = Annotated[str, Meta(min_length=1, max_length=256)]
Biases = Annotated[dict[str, Bias], Meta(max_length=MOST_BIASES)]
Stops = Annotated[list[Stop], Meta(max_length=MOST_STOPS)]
StopIds = Annotated[list[TokenId], Meta(max_length=MOST_STOP_IDS)]
