# ruff: noqa: E501  (a wording is easier to judge on one line)
"""Short exercises: arithmetic, lists, counting, sorting, copying, facts, memory, JSON."""

from __future__ import annotations

import json

from . import words
from .writer import UnluckyError, Writer


def operation(w: Writer, digits: int) -> tuple[str, int, str]:
    """An addition or subtraction on this side of the split: ("47 + 38", 85, worked steps)."""
    low, high = {1: (1, 19), 2: (10, 99), 3: (100, 999)}[digits]
    a, b = w.pair(low, high, small=None if w.chance(0.8) else 1) if digits > 1 else small_pair(w)
    if w.chance(0.5):
        return f"{a} + {b}", a + b, add_steps(a, b)
    a, b = max(a, b), min(a, b)
    return f"{a} - {b}", a - b, subtract_steps(a, b)


def small_pair(w: Writer) -> tuple[int, int]:
    """Operands below 20, which are never held out."""
    return w.rng.randint(1, 19), w.rng.randint(0, 19)


def add_steps(a: int, b: int) -> str:
    """Column addition from the right, one line a column."""
    carry, lines, x, y = 0, [], a, b
    while x or y or carry:
        p, q = x % 10, y % 10
        total = p + q + carry
        extra = " + 1" if carry else ""
        lines.append(f"{p} + {q}{extra} = {total}")
        carry, x, y = total // 10, x // 10, y // 10
        if not (x or y):
            break
    return "\n".join(lines)


def subtract_steps(a: int, b: int) -> str:
    """Column subtraction from the right for a >= b; a borrow is written as 1d - q."""
    borrow, lines, x, y = 0, [], a, b
    while x or y:
        p, q = x % 10, y % 10
        need = q + borrow
        taken = int(p < need)
        left = p + 10 * taken
        extra = " - 1" if borrow else ""
        lines.append(f"{left} - {q}{extra} = {left - need}")
        borrow, x, y = taken, x // 10, y // 10
    return "\n".join(lines)


def sums(w: Writer) -> str:
    """Plain equations, one a line."""
    digits = w.rng.choice((2, 2, 2, 3) if w.held else (1, 2, 2, 2, 2, 2, 3))
    lines = []
    for _ in range(w.rng.randint(4, 10)):
        task, value, _ = operation(w, digits)
        lines.append(f"{task} = {value}")
    return "\n".join(lines)


def worked(w: Writer) -> str:
    """Equations with their columns worked out first."""
    digits = w.rng.choice((2, 3, 3))
    out = []
    for _ in range(w.rng.randint(1, 4)):
        task, value, steps = operation(w, digits)
        out.append(f"{task}:\n{steps}\n{task} = {value}")
    return "\n\n".join(out)


def tables(w: Writer) -> str:
    """Lines of a multiplication table; too few exist to hold any out."""
    if w.held:
        raise UnluckyError
    a = w.rng.randint(2, 12)
    start = w.rng.randint(1, 6)
    return "\n".join(f"{a} * {b} = {a * b}" for b in range(start, start + w.rng.randint(3, 6)))


def copying(w: Writer) -> str:
    """A copying exercise on this side of the split."""
    return w.until_fits(lambda: _copying(w))


def _copying(w: Writer) -> str:
    """A line of invented words, then the line again, reversed or spelled."""
    given = [w.invented() for _ in range(w.rng.randint(2, 6))]
    kind = w.rng.choice(("Copy", "Copy", "Reverse", "Spell", "First", "Last"))
    result = {
        "Copy": " ".join(given),
        "Reverse": " ".join(given[::-1]),
        "Spell": "-".join(given[0]),
        "First": given[0],
        "Last": given[-1],
    }[kind]
    shown = given[0] if kind == "Spell" else " ".join(given)
    return f"{kind}: {shown}\n{kind} result: {result}"


def sorting(w: Writer) -> str:
    """A sorting exercise on this side of the split."""
    return w.until_fits(lambda: _sorting(w))


def _sorting(w: Writer) -> str:
    """Numbers or words put in order."""
    if w.chance(0.6):
        numbers = w.rng.sample(range(1, 100), w.rng.randint(3, 6))
        down = w.chance(0.3)
        order = sorted(numbers, reverse=down)
        return f"{'Sort down' if down else 'Sort'}: {commas(numbers)}\nSorted: {commas(order)}"
    chosen = w.rng.sample(
        words.LISTS[w.rng.choice(("animal", "object", "food", "name"))], w.rng.randint(3, 5)
    )
    return f"Sort: {commas(chosen)}\nSorted: {commas(sorted(chosen))}"


def commas(items: list[int] | list[str]) -> str:
    return ", ".join(map(str, items))


def counting(w: Writer) -> str:
    """A counting exercise on this side of the split."""
    return w.until_fits(lambda: _counting(w))


def _counting(w: Writer) -> str:
    """Counting up, down or in steps, and counting things."""
    if w.chance(0.5):
        step = w.rng.choice((1, 1, 2, 3, 5, 10))
        start = w.rng.randint(0, 60)
        numbers = [start + step * i for i in range(w.rng.randint(5, 9))]
        if w.chance(0.3):
            numbers.reverse()
        return f"Count: {commas(numbers)}"
    kinds = w.rng.sample(words.OBJECTS, 2)
    bag = [w.rng.choice(kinds) for _ in range(w.rng.randint(3, 8))]
    amount = bag.count(kinds[0])
    return f"Things: {commas(bag)}\nHow many {kinds[0]}? {amount}"


def shopping(w: Writer) -> str:
    """A list with bullets or numbers under a heading."""
    kind = w.rng.choice(("food", "object", "animal", "plant", "drink"))
    items = w.rng.sample(words.LISTS[kind], w.rng.randint(3, 5))
    heading = w.say(
        "{Things|A list of things} {to buy|to find|seen|to draw} {#at|near the #place}{ on #day|}:",
        "{Our|The} {list|plan} for #day #time{ in #month|}:",
    )
    numbered = w.chance(0.4)
    return "\n".join([heading] + [f"{n}. {x}" if numbered else f"- {x}" for n, x in enumerate(items, 1)])


def fact(w: Writer) -> str:
    """One true sentence."""
    kind = w.rng.randrange(5)
    pairs = (words.CAPITALS, words.SOUNDS, words.HOMES, words.OPPOSITES, words.MATERIALS)[kind]
    a, b = w.rng.choice(list(pairs.items()))
    w.state.update(a=a, b=b)
    return w.say(
        (
            "{The capital of $a is $b|$b is the capital {city |}of $a|In $a, the capital {city |}is {called |named |}$b}.",
            "{A|Every|The} $a $b{ when it is {hungry|happy|awake|alone|scared}| at {night|noon|home}| in the #time|}.",
            "{A|The|Every} $a {lives|sleeps|makes its home} in a $b{ in {spring|summer|winter|autumn}|}.",
            "The opposite of {the word |}$a is {the word |}$b{, as {everyone knows|we say|#name said}|}.",
            "{People|We|Workers|They} {make|can make|often make} $a {from|out of} $b{ #at|}.",
        )[kind]
    )


def facts(w: Writer) -> str:
    """A few facts in a row."""
    return " ".join(fact(w) for _ in range(w.rng.randint(2, 5)))


def memory(w: Writer) -> str:
    """Who has or where is what, then questions whose answers lie far back."""
    count = w.rng.randint(4, 12)
    names = w.rng.sample(words.GIRLS + words.BOYS, count)
    things = w.rng.sample(words.OBJECTS, count)
    lines = []
    for name, thing in zip(names, things, strict=True):
        w.state.update(name=name, thing=thing, at=words.at(w.pick("place")), color=w.pick("color"))
        lines.append(
            w.say(
                "$name {has|keeps|holds|carries} {the|a} $color $thing $at.",
                "{The|A} $color $thing {of|from} $name {is|lies|was} $at.",
            )
        )
    asked = w.rng.sample(range(count), min(count, w.rng.randint(2, 4)))
    questions = "\n".join(
        f"Who has the {things[i]}? {names[i]}" if w.chance(0.5) else f"What has {names[i]}? {things[i]}"
        for i in asked
    )
    return (" " if w.chance(0.5) else "\n").join(lines) + "\n" + questions


def record(w: Writer) -> dict[str, str | int | list[str]]:
    """A small object about a person, a thing or an order."""
    kind = w.rng.randrange(3)
    if kind == 0:
        return {
            "name": w.pick("name"),
            "age": w.rng.randint(4, 90),
            "city": w.pick("town"),
            "job": w.pick("job"),
        }
    if kind == 1:
        return {
            "item": w.pick("object"),
            "color": w.pick("color"),
            "size": w.pick("size"),
            "count": w.rng.randint(1, 40),
        }
    return {
        "day": w.pick("day"),
        "place": w.pick("place"),
        "guests": w.rng.sample(words.GIRLS + words.BOYS, w.rng.randint(1, 3)),
    }


def describe(w: Writer, data: dict[str, str | int | list[str]]) -> str:
    """The record as a sentence."""
    for key, value in data.items():
        w.state[key] = " and ".join(value) if isinstance(value, list) else str(value)
    if "place" in data:
        w.state["at"] = words.at(str(data["place"]))
    if "age" in data:
        return w.say(
            "$name is $age years old, lives in $city and works as a $job.",
            "$name, a $job {from|in|of} $city, is $age years old.",
            "{In|From} $city {comes|is} $name, {aged|who is} $age, a $job.",
            "{Meet|This is} $name: a $job, $age years old, {from|of} $city.",
        )
    if "item" in data:
        return w.say(
            "{There are|We have|I see|They own} $count $size $color pieces of the {item|kind} $item.",
            "The $item {is|was} $size and $color, and there {are|were} $count{ of them|}.",
            "{Please send|Send|Bring|We need} $count of the $size $color {item|thing}: $item.",
        )
    return w.say(
        "On $day, {we meet|there is a party} $at with $guests.",
        "$guests {will come|are invited|come} to the $place {on|this} $day.",
        "{The|A|Our} {meeting|party|visit} $at is on $day{,| and} with $guests.",
    )


def json_task(w: Writer) -> str:
    """A sentence and its JSON object."""
    data: dict[str, str | int | list[str]] = {}

    def draw() -> str:
        data.clear()
        data.update(record(w))
        return "JSON: " + json.dumps(data)

    encoded = w.until_fits(draw)
    return f"{describe(w, data)}\n{encoded}"


def json_list(w: Writer) -> str:
    """A pretty-printed JSON document."""
    return w.until_fits(
        lambda: json.dumps({"items": [record(w) for _ in range(w.rng.randint(1, 3))]}, indent=2)
    )
