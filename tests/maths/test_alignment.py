"""Text is never split inside a character, lost or doubled, however it arrives."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specroute.alignment import (
    StopScanner,
    TextStream,
    common_text,
    cut_points,
    matched_pieces,
    split_trailing_space,
)

texts = st.text(
    alphabet=st.one_of(st.characters(codec="utf-8"), st.sampled_from("aé 你好👩🏽‍🚀e\u0301\n"))
)


def lossy(ids):
    """Decoder: an id is a byte; an unfinished character is one U+FFFD."""
    return bytes(ids).decode("utf-8", "replace")


def per_byte(ids):
    """Decoder: every byte of an unfinished character is its own U+FFFD (byte fallback)."""
    data, out = bytes(ids), ""
    while data:
        try:
            return out + data.decode()
        except UnicodeDecodeError as error:
            out += data[: error.start].decode() + "\ufffd" * (error.end - error.start)
            data = data[error.end :]
    return out


def stripping(ids):
    """Decoder: drops a leading space, as SentencePiece decoders do."""
    return lossy(ids).removeprefix(" ")


def pieces_of(data, sequence):
    """Cut a sequence at random places."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sequence)), max_size=12)))
    edges = [0, *cuts, len(sequence)]
    return [sequence[a:b] for a, b in pairwise(edges)]


@given(texts, st.sampled_from([lossy, per_byte]), st.data())
def test_ids_become_whole_characters(text, decode, data):
    """Every piece is a prefix of the rest of the text; together they are the text."""
    stream, out = TextStream(decode), ""
    for ids in pieces_of(data, text.encode()):
        out += stream.push(ids)
        assert text.startswith(out)
    assert out + stream.flush() == text


@given(texts.filter(lambda t: "\ufffd" not in t), st.sampled_from([lossy, per_byte]))
def test_a_finished_character_is_not_held_back(text, decode):
    """After each character's last byte its text is out, and nothing is held."""
    stream, out = TextStream(decode), ""
    for character in text:
        for byte in character.encode():
            out += stream.push([byte])
        assert not stream.holding
    assert out == text


@given(st.binary(), st.sampled_from([lossy, per_byte]), st.data())
def test_garbage_bytes_are_neither_lost_nor_doubled(garbage, decode, data):
    """Bytes that are no text come out as the decoder's U+FFFD, whatever the pieces."""
    stream, out = TextStream(decode), ""
    for ids in pieces_of(data, garbage):
        out += stream.push(ids)
    assert out + stream.flush() == decode(garbage)


@given(texts, st.data())
def test_a_decoder_that_strips_the_first_space(text, data):
    """Only the very first space of the stream is the decoder's to strip."""
    stream, out = TextStream(stripping), ""
    for ids in pieces_of(data, text.encode()):
        out += stream.push(ids)
    assert out + stream.flush() == text.removeprefix(" ")


def test_holding():
    """Half a character is held; flush gives it up as U+FFFD."""
    stream = TextStream(lossy)
    assert (stream.push(b"a\xe4\xbd"), stream.holding) == ("a", True)
    assert (stream.push(b"\xa0"), stream.holding) == ("你", False)
    assert (stream.push(b"\xf0\x9f"), stream.flush(), stream.holding) == ("", "\ufffd", False)
    assert (TextStream(lossy).flush(), TextStream(lossy).push([])) == ("", "")


def first_stop(text, stops):
    """By definition: the shortest prefix that ends with a stop string, without it."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end - len(stop)], stop
    return text, None


@given(
    st.text("ab\n你", max_size=30),
    st.lists(st.text("ab\n你", min_size=1, max_size=4), max_size=4),
    st.data(),
)
def test_stop_strings_cut_the_same_wherever_pieces_end(text, stops, data):
    """The scanner equals the definition, for every way of cutting the text up."""
    scanner, out = StopScanner(stops), ""
    for piece in pieces_of(data, text):
        out += scanner.push(piece)
        if scanner.hit is None:
            assert text.startswith(out + scanner.held)
    out += scanner.finish()
    assert (out, scanner.hit) == first_stop(text, stops)


@pytest.mark.parametrize(
    ("pieces", "stops", "expected"),
    [
        (["one\n", "\ntwo"], ["\n\n"], ["one", "", None, "\n\n"]),
        (["abc"], ["abcd", "c"], ["ab", None, "c"]),
        (["ab", "x"], ["abc"], ["", "abx", None, None]),
        (["ab"], ["abc"], ["", "ab", None]),
        (["tail"], [], ["tail", None, None]),
        (["tail"], [""], ["tail", None, None]),
        (["a STOP b"], ["STOP"], ["a ", None, "STOP"]),
    ],
)
def test_stop_table(pieces, stops, expected):
    """What each push hands on, what the end releases, which stop was hit."""
    scanner = StopScanner(stops)
    got = [scanner.push(piece) for piece in pieces]
    assert [*got, scanner.finish() or None, scanner.hit] == expected


def test_nothing_follows_a_stop():
    """After the hit every push is empty."""
    scanner = StopScanner(["."])
    assert [scanner.push("a.b"), scanner.push("c."), scanner.finish()] == ["a", "", ""]


@pytest.mark.parametrize(
    ("pieces", "text", "expected"),
    [
        (["Hel", "lo", " you"], "Hello world", (2, 5)),
        (["Hel", "lo"], "Hello", (2, 5)),
        (["Hel", "lo"], "Hell", (1, 3)),
        (["x"], "Hello", (0, 0)),
        (["", "He"], "Hello", (2, 2)),
        (["He", ""], "Hello", (1, 2)),
        ([], "Hello", (0, 0)),
    ],
)
def test_a_draft_is_confirmed_in_whole_tokens(pieces, text, expected):
    """A token that the text covers only in part is not confirmed."""
    assert matched_pieces(pieces, text) == expected


@given(texts, texts, texts)
def test_common_text(shared, a, b):
    """At least what was put there, and the next characters differ."""
    n = common_text(shared + a, shared + b)
    assert n >= len(shared)
    assert (shared + a)[:n] == (shared + b)[:n]
    assert (shared + a)[n : n + 1] != (shared + b)[n : n + 1] or n == len(shared + a)


@given(texts)
def test_trailing_space_is_split_off_whole(text):
    """The parts join to the text; the first ends in no whitespace."""
    sendable, held = split_trailing_space(text)
    assert sendable + held == text
    assert sendable == sendable.rstrip()
    assert not held.strip()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one two three", [3, 7]),
        ("one  two", []),
        ("one \ntwo", []),
        (" one ", []),
        ("one \u0301two", []),
        ("退款会在三天内到账", []),
        ("用 Python 写", [1, 8]),
        ("", []),
    ],
)
def test_cut_points(text, expected):
    """Before single spaces between other characters only."""
    assert cut_points(text) == expected
