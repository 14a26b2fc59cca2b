"""Text files become documents and full windows, or are refused with what is missing."""

import pytest

from intarsia.core.errors import UsageError
from intarsia.engine.text.tokenizer import Tokenizer
from intarsia.evidence.errors import TextError
from intarsia.evidence.forms import Form, tokenizer_of
from intarsia.evidence.quality.documents import (
    BY_BLANK_LINE,
    BY_MARK,
    Corpus,
    read_corpus,
    split_documents,
)
from intarsia.evidence.quality.windows import WindowPlan, cut_windows, windows_hash


@pytest.fixture(scope="module")
def tokenizer(demo: Form) -> Tokenizer:
    return tokenizer_of(demo)


def corpus(*documents: tuple[int, ...]) -> Corpus:
    return Corpus("text", "", "", documents)


def test_marks_end_documents_and_blank_lines_separate_them():
    assert split_documents("a\n\nb<|endoftext|>\nc<|endoftext|>\n") == [
        "a\n\nb<|endoftext|>",
        "c<|endoftext|>",
    ]
    assert split_documents("a<|endoftext|>b") == ["a<|endoftext|>", "b"]
    assert split_documents("\n\na\nb\n\n \n\nc\n") == ["a\nb\n\n", "c"]
    assert split_documents(" \n\n\t\n") == []


def test_the_end_mark_is_one_token(tmp_path, tokenizer):
    file = tmp_path / "text.txt"
    file.write_text("A fox.<|endoftext|>\nAn owl.<|endoftext|>\n")
    found = read_corpus(file, tokenizer)
    assert found.rule == BY_MARK
    end = tokenizer.token("<|endoftext|>")
    assert [document[-1] for document in found.documents] == [end, end]
    assert sum(document.count(end) for document in found.documents) == 2
    file.write_text("A fox.\n\nAn owl.")
    assert read_corpus(file, tokenizer).rule == BY_BLANK_LINE


@pytest.mark.parametrize(("content", "word"), [(b"\xff\xfe", "UTF-8"), (b" \n", "document")])
def test_files_without_text_are_refused(tmp_path, tokenizer, content, word):
    (tmp_path / "text.txt").write_bytes(content)
    with pytest.raises(TextError, match=word):
        read_corpus(tmp_path / "text.txt", tokenizer)
    with pytest.raises(TextError, match="no such file"):
        read_corpus(tmp_path / "other.txt", tokenizer)


def test_windows_begin_with_documents_and_are_full():
    found = cut_windows(corpus((1, 2, 3), (4, 5), (6,), (7, 8, 9, 10)), WindowPlan(2, 4))
    assert [window.tokens for window in found] == [(1, 2, 3, 4), (6, 7, 8, 9)]
    assert [window.documents for window in found] == [(0, 0, 0, 1), (2, 3, 3, 3)]
    assert found[0].targets().tolist() == [2, 3, 4, -1]


def test_too_little_text_names_how_much_there_is():
    with pytest.raises(TextError, match="ask for 1x4") as refused:
        cut_windows(corpus((1, 2, 3), (4, 5), (6,)), WindowPlan(2, 4))
    assert "6 tokens" in str(refused.value)


def test_the_hash_sees_ids_order_and_bounds():
    hashes = {
        windows_hash(cut_windows(corpus(*documents), plan))
        for documents, plan in [
            (((1, 2), (3, 4)), WindowPlan(2, 2)),
            (((1, 2), (4, 3)), WindowPlan(2, 2)),
            (((1, 2), (3, 4)), WindowPlan(1, 4)),
        ]
    }
    assert len(hashes) == 3


@pytest.mark.parametrize("text", ["16", "0x8", "4x1", "x", "1x2x3", "-1x4", "1e3x4"])
def test_other_plans_are_refused(text):
    with pytest.raises(UsageError, match="windows x tokens"):
        WindowPlan.parse(text)
    assert str(WindowPlan.parse("16x1024")) == "16x1024"
