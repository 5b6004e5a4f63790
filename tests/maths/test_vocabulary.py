"""Vocabularies: the same iff they give the same ids; text survives; templates are never guessed."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specroute.alignment import TextStream
from specroute.vocabulary import PROBE_TEXTS, agrees, load_vocabulary
from tests.support.tiny import TEXT, save_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def vocabulary(folder):
    return load_vocabulary(folder)


def test_the_same_folder_is_the_same_vocabulary(folder, vocabulary):
    """Fingerprints are stable, also over padding, truncation and template settings."""
    assert load_vocabulary(str(folder)).fingerprint == vocabulary.fingerprint


def test_settings_that_change_no_ids_change_no_fingerprint(folder, vocabulary, tmp_path):
    """The chat template, padding and the post-processor are not part of it."""
    for source in folder.iterdir():
        (tmp_path / source.name).write_bytes(source.read_bytes())
    spec = json.loads((tmp_path / "tokenizer.json").read_text())
    spec["truncation"] = {
        "direction": "Right",
        "max_length": 4,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    other = load_vocabulary(tmp_path)
    assert other.fingerprint == vocabulary.fingerprint
    assert len(other.encode(TEXT)) > 4


def test_other_merges_are_another_vocabulary(vocabulary, tmp_path):
    """Trained on other text: other ids, other fingerprint."""
    other = load_vocabulary(save_tokenizer(tmp_path, text=TEXT[::-1]))
    assert other.fingerprint != vocabulary.fingerprint
    assert other.encode(TEXT) != vocabulary.encode(TEXT)


@given(st.text())
def test_text_survives(vocabulary, text):
    """decode(encode(text)) is text; a stream of its ids gives it back whole."""
    ids = vocabulary.encode(text)
    assert vocabulary.decode(ids) == text
    stream = TextStream(vocabulary.decode)
    assert "".join(stream.push([i]) for i in ids) + stream.flush() == text


def test_specials_give_no_text(vocabulary):
    """Special tokens have ids and no text; the end token is one of them."""
    ids = vocabulary.encode("<|user|>hi<|end|>")
    assert vocabulary.decode(ids) == "hi"
    assert vocabulary.eos_ids == {ids[-1]} <= vocabulary.special_ids
    assert vocabulary.size == 400


def test_an_unfinished_character_is_a_replacement_character(vocabulary):
    """The first byte alone of a character that is more than one token."""
    ids = vocabulary.encode("🎉")
    assert len(ids) > 1
    assert vocabulary.decode(ids[:1]).endswith("\ufffd")


def test_a_chat_is_rendered_by_its_template(vocabulary):
    """Generation prompt included, content parts joined."""
    expected = vocabulary.encode("<|user|>hi you<|end|><|assistant|>")
    assert vocabulary.render([{"role": "user", "content": "hi you"}]) == expected
    parts = [{"type": "text", "text": "hi "}, {"type": "text", "text": "you"}]
    assert vocabulary.render([{"role": "user", "content": parts}]) == expected


def test_a_template_is_never_guessed(tmp_path):
    """Without one, or where it fails, rendering raises."""
    with pytest.raises(ValueError, match="no chat template"):
        load_vocabulary(save_tokenizer(tmp_path / "a", template=None)).render([])
    failing = load_vocabulary(
        save_tokenizer(tmp_path / "b", template="{{ raise_exception('no') }}")
    )
    with pytest.raises(ValueError, match="can't render"):
        failing.render([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize(("eos", "expected"), [(7, {0, 7}), ([7, 9], {0, 7, 9}), (None, {0})])
def test_end_tokens_come_from_the_generation_config_too(tmp_path, eos, expected):
    """Tokenizer and generation_config.json together."""
    save_tokenizer(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    assert load_vocabulary(tmp_path).eos_ids == expected


def test_a_tokenizer_without_an_end_token(tmp_path):
    """It has no end ids, and neither a pad token is needed."""
    assert load_vocabulary(save_tokenizer(tmp_path, eos=None)).eos_ids == frozenset()


@pytest.mark.parametrize("content", [None, "{not json"])
def test_what_is_no_tokenizer_says_so(tmp_path, content):
    """An empty folder and a broken file raise, naming the folder."""
    if content:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ValueError, match="no tokenizer could be loaded from") as raised:
        load_vocabulary(tmp_path)
    assert str(tmp_path) in str(raised.value)


def test_a_server_is_recognised_by_its_answers(vocabulary, tmp_path):
    """Equal ids agree, with or without a BOS; another tokenizer's don't; silence doesn't."""
    ours = {text: vocabulary.encode(text) for text in PROBE_TEXTS}
    bos = min(vocabulary.special_ids)
    other = load_vocabulary(save_tokenizer(tmp_path, text=TEXT[::-1]))
    assert agrees(vocabulary, ours)
    assert agrees(vocabulary, {text: [bos, *ids] for text, ids in ours.items()})
    assert not agrees(other, ours)
    assert not agrees(vocabulary, {PROBE_TEXTS[0]: []})
    assert not agrees(vocabulary, {})
