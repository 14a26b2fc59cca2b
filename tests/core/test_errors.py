"""Violations as people read them: each once, however many places it is found in."""

from intarsia.core.errors import Violation, ViolationsError, told_once


def few(where, found="4 units"):
    return Violation("fewer-units", where, found, "one for each of 9 ranks", "use fewer ranks")


def test_the_same_violation_of_many_places_is_one_line():
    (line,) = told_once([few(f"layer {index}") for index in range(7)])
    assert line == (
        "[fewer-units] 7 places, such as layer 0, layer 1, layer 2 and others: found 4 units; "
        "expected one for each of 9 ranks; use fewer ranks"
    )


def test_what_was_found_may_vary_a_little():
    found = [few(f"layer {index}", f"{index % 2} units") for index in range(10)]
    assert told_once(found)[0].startswith(
        "[fewer-units] 10 places, such as layer 0, layer 1, layer 2 and others"
    )
    assert "found 0 units, 1 units; expected" in told_once(found)[0]


def test_others_keep_lines_of_their_own_in_their_order():
    other = Violation("missing-shard", "a.safetensors", "no such file")
    alone = [few("layer 0"), few("layer 1"), other, *(few(f"x {index}", f"{index}") for index in range(9))]
    assert told_once(alone) == [str(one) for one in alone if one != other] + [str(other)]
    together = told_once([*(few(f"layer {index}") for index in range(5)), other])
    assert together[1:] == [str(other)]


def test_an_error_counts_all_and_keeps_all():
    error = ViolationsError("demo", [few(f"layer {index}") for index in range(99)])
    first, *lines = str(error).splitlines()
    assert first == "demo: found 99 violations"
    assert len(lines) == 1
    assert len(error.violations) == 99
