"""Exclude patterns: whole components, linear time, and no expression that is not understood."""

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intarsia.checkpoint.aliases import aliases
from intarsia.checkpoint.automaton import Automaton
from intarsia.checkpoint.errors import RecipeError
from intarsia.checkpoint.patterns import Patterns

NAME = "model.layers.1.mlp.gate"


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        (NAME, NAME, True),
        (NAME, NAME + ".weight_holder", True),
        (NAME, "model.layers.1.mlp.gate_up_proj", False),
        ("model.layers.1", "model.layers.11.mlp", False),
        ("model.layers.1", "model.layers.1.mlp", True),
        ("model.layers.1*", "model.layers.11.mlp", True),
        ("model.layers.1.*", "model.layers.11.mlp", False),
        ("model.layers.1.*", "model.layers.1.mlp", True),
        ("lm_head", "lm_head", True),
        ("lm_head", "model.lm_head_norm", False),
        ("*.mlp.gate", NAME, True),
        ("*.mlp.gate", "model.layers.1.mlp.gate.x", False),
        ("model.layers.?.mlp.gate", NAME, True),
        ("model.layers.[0-3].mlp.*", NAME, True),
        ("model.layers.[!0-3].mlp.*", NAME, False),
        ("Model.layers*", NAME, False),
        ("[", "[", True),
        (r"re:.*\.mlp\.gate$", NAME, True),
        (r"re:^model\.layers\.(0|1)\..*", NAME, True),
        (r"re:.*mlp\.gat", NAME, False),
        (r"re:model\.layers\.\d+\.mlp\.\w+", NAME, True),
        (r"re:model\.(?:layers|blocks)\.[0-9]+?\.mlp\.gate", NAME, True),
    ],
)
def test_rules(pattern, name, matches):
    assert (Patterns([pattern]).match([name]) == pattern) == matches


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("mlp.gate", NAME, True),
        ("mlp.gate", "model.layers.1.mlp.gate_up_proj", False),
        ("gate", NAME, True),
        ("lp.gate", NAME, False),
        ("layers.1", "model.layers.11.mlp", False),
    ],
)
def test_fragments_match_runs_of_components_in_old_exports_only(pattern, name, matches):
    assert (Patterns([pattern], legacy=True).match([name]) is not None) == matches
    assert Patterns([pattern]).match([name]) is None


def test_patterns_without_a_hit_are_known():
    patterns = Patterns(["a.b", "c*", "*.d", "nothing"])
    for name in ("a.b.x", "cc", "x.d"):
        assert patterns.match([name])
    assert patterns.unmatched() == ["nothing"]


@pytest.mark.parametrize(
    "pattern", ["re:(a", "re:a)", "re:[a", r"re:(a)\1", "re:(?=a)", "re:a{3}", "re:a**", r"re:\s", "re:*a"]
)
def test_expressions_beyond_the_subset_are_refused(pattern):
    patterns = Patterns([pattern])
    assert [type(error) for error in patterns.refused] == [RecipeError]
    assert patterns.match(["a"]) is None


def test_expressions_that_make_others_hang_are_quick():
    patterns = Patterns(["re:(a+)+b", "re:(a|a)*b", "*a" * 40 + "b", r"re:(.*)*(.*)*x"])
    assert patterns.match(["a" * 1000]) is None
    assert patterns.match(["a" * 1000 + "b"]) is not None
    assert patterns.refused == []


def test_patterns_that_would_take_too_much_are_said_to():
    many = Patterns(["*" + "a?" * 30_000])
    assert "wildcard" in many.refused[0].found
    slow = Patterns(["*a" + "?" * 400 + "b"])  # remembers where the last 400 letters were an a
    letters = random.Random(1)
    for _ in range(200):
        slow.match(["".join(letters.choices("ab", k=1000))])
    assert "too long" in slow.refused[0].found


@given(st.text("ab.*?", max_size=8), st.text("ab.", max_size=8))
def test_globs_agree_with_their_regular_expressions(pattern, name):
    automaton = Automaton()
    automaton.add_glob(pattern, 7)
    expected = re.fullmatch(pattern.replace(".", r"\.").replace("*", ".*").replace("?", "."), name)
    assert (automaton.matches(name) == {7}) == bool(expected)


EXPRESSIONS = st.recursive(
    st.sampled_from(["a", "b", ".", r"\.", "[ab]", "[^a]", r"\d"]),
    lambda inner: st.one_of(
        st.builds("({})*".format, inner),
        st.builds("({})?".format, inner),
        st.builds("(?:{})+".format, inner),
        st.builds("{}{}".format, inner, inner),
        st.builds("({}|{})".format, inner, inner),
    ),
    max_leaves=6,
)


@given(EXPRESSIONS, st.text("ab.1", max_size=6))
def test_expressions_agree_with_re(expression, name):
    automaton = Automaton()
    automaton.add_regex(expression, 0)
    assert (automaton.matches(name) == {0}) == bool(re.fullmatch(expression, name))


@pytest.mark.parametrize(
    ("name", "alias"),
    [
        ("model.language_model.layers.3.mlp", "language_model.model.layers.3.mlp"),
        ("language_model.model.layers.3.mlp", "model.language_model.layers.3.mlp"),
        ("model.language_model.layers.3.mlp", "model.layers.3.mlp"),
        ("language_model.lm_head", "lm_head"),
        ("backbone.layers.0.mixer", "model.layers.0.mixer"),
        ("model.layers.48.mlp.experts", "mtp.layers.0.mlp.experts"),
        ("model.language_model.layers.49.mlp", "mtp.layers.1.mlp"),
        ("mtp.layers.0.mlp.experts", "model.layers.48.mlp.experts"),
        ("model.layers.1.block_sparse_moe.experts.3.w1", "model.layers.1.mlp.experts.3.gate_proj"),
        ("model.layers.1.block_sparse_moe.experts.3.w2", "model.layers.1.mlp.experts.3.down_proj"),
    ],
)
def test_aliases(name, alias):
    found = aliases(name, 48)
    assert found[0] == name
    assert alias in found


def test_main_layers_are_no_mtp_layers():
    assert not any("mtp" in alias for alias in aliases("model.layers.47.mlp", 48))
    assert not any("mtp" in alias for alias in aliases("model.layers.48.mlp", None))
