# mypy: ignore-errors
# ruff: noqa: RUF005
"""Numbers that travel between GPUs with the number of their call, in one eight-byte word each. Nothing is
fenced: a word that holds this call holds its number too.

Every thread puts and takes its own words, and waits for those alone.
"""

import triton
import triton.language as tl

NO_NUMBER = tl.constexpr(0x7FFFFFFF)
"""What stands for numbers that did not come: a NaN, which no token is drawn from."""

_PUT = tl.constexpr("""{
    .reg .pred valid;
    .reg .b64 word;
    setp.ne.b32 valid, $4, 0;
    mov.b64 word, {$2, $3};
    @valid st.relaxed.sys.global.b64 [$1], word;
    mov.b32 $0, $4;
}""")


@triton.constexpr_function
def _take_text(pack):
    """Look at `pack` words until all that are wanted hold the call, or it is too late."""
    each = range(pack)
    address, wanted, call, until, failed = (pack * (1 + operand) for operand in range(5))
    lines = [
        ".reg .pred missing, other, early;",
        ".reg .b64 time;",
        *(f".reg .pred valid{i}; .reg .b64 word{i}; .reg .b32 number{i}, seen{i};" for i in each),
        *(f"mov.b64 word{i}, 0; setp.ne.b32 valid{i}, ${wanted + i}, 0;" for i in each),
        "LOOK:",
        *(f"@valid{i} ld.relaxed.sys.global.b64 word{i}, [${address + i}];" for i in each),
        *(f"mov.b64 {{number{i}, seen{i}}}, word{i};" for i in each),
        f"setp.ne.and.b32 missing, seen0, ${call}, valid0;",
        *(
            f"setp.ne.and.b32 other, seen{i}, ${call}, valid{i}; or.pred missing, missing, other;"
            for i in each[1:]
        ),
        "@!missing bra DONE;",
        f"mov.u64 time, %globaltimer; setp.le.s64 early, time, ${until};",
        "@early bra LOOK;",
        f"mov.b32 seen0, 1; st.relaxed.gpu.global.b32 [${failed}], seen0;",
        *(f"mov.b32 number{i}, {NO_NUMBER.value};" for i in each),
        "DONE:",
        *(f"mov.b32 ${i}, number{i};" for i in each),
    ]
    return "{\n" + "\n".join(lines) + "\n}"


@triton.constexpr_function
def _take_operands(pack):
    kinds = "=r", "l", "r", "r", "l", "l"
    return ",".join(kind for kind in kinds for _ in range(pack))


@triton.jit
def put(address, number, call, valid):
    """Write int32 numbers, and the call, to addresses of any GPU where `valid` is not zero; returns `valid`.

    What `take` gets as valid must come from here: else the compiler may take twice, in two layouts.
    """
    return tl.inline_asm_elementwise(
        _PUT, "=r,l,r,r,r", [address, number, call, valid], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def take(address, call, valid, until, failed, PACK: tl.constexpr):
    """The int32 numbers of a call, once they are there; a thread waits for PACK of its numbers together.

    NO_NUMBER after the time `until`, and `failed` is set. Zero where `valid` is zero.
    """
    return tl.inline_asm_elementwise(
        _take_text(PACK),
        _take_operands(PACK),
        [address, valid, call, until, failed.to(tl.int64)],
        dtype=tl.int32,
        is_pure=False,
        pack=PACK,
    )


@triton.jit
def now():
    """Nanoseconds of the device's clock."""
    return tl.inline_asm_elementwise(
        "mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
    )


@triton.jit
def deadline(failed, limit):
    """When waiting ends: at once where a rank failed to come before, so that a step waits only once."""
    return after(patience(failed, limit))


@triton.jit
def patience(failed, limit):
    """How many milliseconds other ranks are waited for."""
    return tl.where(tl.load(failed) == 0, limit, 0)


@triton.jit
def after(milliseconds):
    """The time in so many milliseconds."""
    return now() + milliseconds.to(tl.int64) * 1000000


@triton.jit
def addresses(buffers, RANKS: tl.constexpr):
    """Where all ranks' buffers are. They never move, so this may be read before anything is waited for."""
    found = ()
    for rank in tl.static_range(RANKS):
        found = found + (tl.load(buffers + rank),)
    return found


@triton.jit
def sum_over_ranks(
    own, valid, place, places, half, room, call, failed, wait, RANK: tl.constexpr, RANKS: tl.constexpr,
    PACK: tl.constexpr,
):  # fmt: skip
    """The sum over ranks of `own`, float32, rank 0 first; NaN where another rank's did not come in `wait` ms.

    `places`: of all ranks the address of words [2, RANKS, room]; `half` begins in words, `place` within room.
    """
    words = own.to(tl.int32, bitcast=True)
    wanted = valid.to(tl.int32)
    for peer in tl.static_range(RANKS):
        if peer != RANK:
            wanted = put(places[peer] + (half + RANK * room + place) * 8, words, call, wanted)
    until = after(wait)
    total = own
    for source in tl.static_range(RANKS):
        if source == RANK:
            part = own
        else:
            there = places[RANK] + (half + source * room + place) * 8
            part = take(there, call, wanted, until, failed, PACK).to(tl.float32, bitcast=True)
        total = part if source == 0 else total + part
    return total
