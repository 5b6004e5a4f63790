"""Tokens' bytes: joined they are the text, whichever way a tokenizer writes bytes down."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specroute.token_bytes import gpt2_alphabet, token_bytes
from specroute.vocabulary import load_vocabulary
from tests.support.tiny import TEXT, save_sentencepiece, save_tokenizer


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    return load_vocabulary(save_tokenizer(tmp_path_factory.mktemp("gpt2")))


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory):
    return load_vocabulary(save_sentencepiece(tmp_path_factory.mktemp("sentencepiece")))


def joined(vocabulary, ids):
    return b"".join(vocabulary.tokens[i] for i in ids)


@given(st.text())
def test_byte_level_tokens_join_to_the_text(gpt2, text):
    """GPT-2's alphabet undone, whatever the characters."""
    assert joined(gpt2, gpt2.encode(text)) == text.encode()


@given(st.text(st.characters(exclude_characters="▁", codec="utf-8"), min_size=1))
def test_sentencepiece_tokens_join_to_the_text(sentencepiece, text):
    """▁ is a space, the one put in front included; <0xNN> is a byte."""
    assert joined(sentencepiece, sentencepiece.encode(text)) == b" " + text.encode()


def test_the_alphabet_has_every_byte_once():
    """256 characters, printable Latin-1 standing for itself."""
    alphabet = gpt2_alphabet()
    assert sorted(alphabet.values()) == list(range(256))
    assert (alphabet["A"], alphabet["Ġ"], alphabet["Ċ"]) == (65, 32, 10)


def test_special_tokens_stand_for_no_bytes(gpt2, sentencepiece):
    """Special, end, start and unknown tokens."""
    for vocabulary in (gpt2, sentencepiece):
        assert {vocabulary.tokens[i] for i in vocabulary.special_ids} == {None}
        assert len(vocabulary.tokens) == vocabulary.size
    assert sentencepiece.tokens[0] is None


def test_a_start_token_is_known_by_what_the_tokenizer_does(gpt2, sentencepiece):
    """Only the second one puts one before a text; encoding never adds it."""
    assert (gpt2.bos_id, sentencepiece.bos_id) == (None, 1)
    assert 1 not in sentencepiece.encode(TEXT)


def test_the_closing_token_is_the_templates(gpt2, sentencepiece, tmp_path):
    """Of several end tokens the one that follows an answer; without a template the tokenizer's."""
    assert (gpt2.end_id, sentencepiece.end_id) == (min(gpt2.eos_ids), 2)
    save_tokenizer(tmp_path, eos="<|system|>")
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [0, 3]}')
    other = load_vocabulary(tmp_path)
    assert other.eos_ids == {0, 3}
    assert other.end_id == 0


def test_added_tokens_stand_for_themselves():
    """Also with characters that are not of the alphabet."""
    spec = {
        "model": {"vocab": {"a": 0, "Ġb": 1}},
        "added_tokens": [
            {"id": 2, "content": "  ", "special": False},
            {"id": 4, "content": "<think>", "special": False},
        ],
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteLevel"}]},
    }
    assert token_bytes(spec, 5, lambda ids: "") == (b"a", b" b", b"  ", None, b"<think>")


def test_other_tokenizers_are_asked():
    """WordPiece: what decoding adds to a letter."""
    words = ["[UNK]", "a", "##b", "c"]

    def decode(ids):
        text = " ".join(words[i] for i in ids)
        return text.replace(" ##", "")

    spec = {
        "model": {"vocab": {w: i for i, w in enumerate(words)}, "unk_token": "[UNK]"},
        "decoder": {"type": "WordPiece"},
    }
    assert token_bytes(spec, 4, decode) == (None, b" a", b"b", b" c")


def test_unigram_vocabularies_are_lists():
    """Pieces in order of their ids; the unknown one has none."""
    spec = {
        "model": {"vocab": [["<unk>", 0], ["▁a", -1.0]], "unk_id": 0},
        "decoder": {"type": "Metaspace", "replacement": "▁"},
    }
    assert token_bytes(spec, 2, lambda ids: "") == (None, b" a")
