"""Tokens to text: exact, whole characters only, the same in one piece and streamed."""

import contextlib
import json

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.checkpoint.errors import CheckpointError
from intarsia.core.errors import IntarsiaError, UsageError
from intarsia.core.json import JsonError
from intarsia.engine.text import ReplyText, Tokenizer
from intarsia.engine.text.errors import TokenizerError
from intarsia.engine.text.tokenizer import FILE_NAME

from .conftest import CONTROL, MARKUP


def library_decode(document: bytes, tokens: list[int]) -> str:
    """What the tokenizers library decodes; hidden control tokens taken out first."""
    library = tokenizers.Tokenizer.from_str(document.decode())
    hidden = {library.token_to_id(content) for content in CONTROL}
    return library.decode([token for token in tokens if token not in hidden], skip_special_tokens=False)


class TestTokenizer:
    @pytest.mark.parametrize("text", ["the cat 🐕\n", "", "naïve 猫", "<think>x</think>", "\x00\x7f\u00ad"])
    def test_round_trip(self, tokenizer, text):
        assert tokenizer.decode(tokenizer.encode(text)) == text

    def test_control_tokens_are_read_and_not_shown(self, tokenizer):
        tokens = tokenizer.encode("[gMASK]<sop><|user|>cat<|assistant|>")
        assert tokens[0] == tokenizer.token("[gMASK]")
        assert tokenizer.decode(tokens) == "cat"
        assert tokenizer.token("no such token") is None

    def test_markup_is_shown_even_where_it_is_listed_as_special(self, tokenizer_document):
        document = json.loads(json.dumps(tokenizer_document))
        for added in document["added_tokens"]:
            added["special"] = True
        special = Tokenizer(json.dumps(document).encode())
        text = "".join(MARKUP)
        assert special.decode(special.encode(text)) == text

    @settings(max_examples=300, deadline=None)
    @given(st.data())
    def test_decode_equals_the_library(self, tokenizer, tokenizer_json, data):
        tokens = data.draw(st.lists(st.integers(0, tokenizer.size + 3), max_size=40))
        assert tokenizer.decode(tokens) == library_decode(tokenizer_json, tokens)

    @settings(max_examples=200, deadline=None)
    @given(st.data())
    def test_streaming_equals_decoding_at_once(self, tokenizer, data):
        tokens = data.draw(st.lists(st.integers(0, tokenizer.size), max_size=40))
        reply = ReplyText(tokenizer)
        shown = [reply.push(token) for token in tokens]
        assert "".join(shown) + reply.finish() == tokenizer.decode(tokens)

    def test_no_half_characters(self, tokenizer):
        tokens = tokenizer.encode("x🐳猫é")
        assert len(tokens) > 4
        reply = ReplyText(tokenizer)
        shown = [reply.push(token) for token in tokens]
        assert "\ufffd" not in "".join(shown)
        assert "".join(shown) == "x🐳猫é"

    def test_an_unfinished_character_ends_as_a_replacement(self, tokenizer):
        reply = ReplyText(tokenizer)
        assert reply.push(tokenizer.encode("🐳")[0]) == ""
        assert reply.finish() == "\ufffd"

    def test_a_lone_surrogate_is_refused(self, tokenizer):
        with pytest.raises(UsageError, match="surrogate at character 2"):
            tokenizer.encode("ab\ud800")


class TestFiles:
    def test_missing(self, tmp_path):
        with pytest.raises(TokenizerError, match="no such file"):
            Tokenizer.open(tmp_path)

    def test_too_large(self, tmp_path):
        with open(tmp_path / FILE_NAME, "wb") as file:
            file.truncate((64 << 20) + 1)
        with pytest.raises(CheckpointError, match="at most"):
            Tokenizer.open(tmp_path)

    @pytest.mark.parametrize(
        "content",
        [b"", b"{", b"[]", b"{}", b'{"decoder": {"type": "ByteLevel"}}', b"\xff", b'{"decoder": 5}'],
    )
    def test_malformed(self, tmp_path, content):
        (tmp_path / FILE_NAME).write_bytes(content)
        with pytest.raises((TokenizerError, JsonError)):
            Tokenizer.open(tmp_path)

    @pytest.mark.parametrize("decoder", [None, {"type": "Metaspace"}, {"type": "Sequence", "decoders": []}])
    def test_other_decoders_are_refused(self, tokenizer_document, decoder):
        document = {**tokenizer_document, "decoder": decoder}
        with pytest.raises(TokenizerError, match="ByteLevel"):
            Tokenizer(json.dumps(document).encode())

    @settings(max_examples=150, deadline=None)
    @given(st.integers(0, 2**31), st.integers(1, 6))
    def test_mutated_files_give_our_errors_or_work(self, tokenizer_json, seed, count):
        import random

        rng = random.Random(seed)
        data = bytearray(tokenizer_json)
        for _ in range(count):
            data[rng.randrange(len(data))] = rng.choice(b'0129{}[]",:nutxz\\ \x00\xff')
        with contextlib.suppress(IntarsiaError):
            Tokenizer(bytes(data)).decode([0, 1, 300])
