"""Prompt lookup: the longest suffix, its most recent occurrence, at a cost that doesn't grow."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specroute.context import Committed, Prompt
from specroute.draft.ngram import NgramDrafter, NgramIndex, split_pieces
from specroute.vocabulary import load_vocabulary


async def session(prompt, vocabulary=None):
    return await NgramDrafter().open(prompt, vocabulary)


def text_prompt(text):
    return Prompt(({"role": "user", "content": text},), None)


@pytest.mark.parametrize(
    ("prompt", "committed", "k", "expected"),
    [
        pytest.param((1, 2, 3, 4, 5, 1), (2,), 2, (3, 4), id="what followed last time"),
        pytest.param((1, 2, 3, 1, 2, 4, 9, 1), (2,), 1, (4,), id="most recent wins"),
        pytest.param((7, 1, 2, 3, 1, 2, 4, 7, 1), (2,), 1, (3,), id="longer match wins"),
        pytest.param((1, 2, 3, 4), (), 3, (), id="nothing seen before"),
        pytest.param((3, 1, 2), (3,), 3, (), id="one token is too short a match"),
        pytest.param((1, 2, 1, 2), (), 5, (1, 2, 1, 2, 1), id="a loop goes on"),
        pytest.param((), (), 3, (), id="nothing at all"),
    ],
)
async def test_lookup_by_ids(prompt, committed, k, expected):
    """Ids over the prompt and the answer so far; q is a point mass."""
    proposal = await (await session(Prompt(None, None, prompt))).propose(
        Committed("", committed), k
    )
    assert (proposal.ids, proposal.q) == (expected, None)


@pytest.mark.parametrize(
    ("prompt", "committed", "k", "expected"),
    [
        ("The order 7731 was shipped today.", "Yes, the order 7731", 3, " was shipped today"),
        ("The order 7731 was shipped today.", "Yes, the order 7731 wa", 2, "s shipped"),
        ("The order 7731 was shipped today.", "Yes, the order 7731 ", 2, "was shipped"),
        ("您的订单已发货，退款将到账。", "您好，您的订单", 4, "已发货，"),
        ("nothing alike", "something else", 4, ""),
        ("", "", 4, ""),
    ],
)
async def test_lookup_by_text(prompt, committed, k, expected):
    """Words, punctuation and CJK characters; a word that was only begun is finished."""
    proposal = await (await session(text_prompt(prompt))).propose(Committed(committed), k)
    assert (proposal.text, proposal.ids) == (expected, None)


async def test_text_is_used_where_the_answers_ids_are_not_known():
    """Ids of the prompt alone are not enough."""
    opened = await session(Prompt(None, "a b c d a b", (1, 2, 3)))
    assert (await opened.propose(Committed(" a b"), 2)).text == " a b"


async def test_drafts_by_ids_have_text_and_stop_at_special_tokens(folder):
    """The end token ends a draft; any other special token, and all after it, is left out."""
    vocabulary = load_vocabulary(folder)
    encode = vocabulary.encode
    seen = encode("one two<|end|><|user|>three four<|user|>five")
    opened = await session(Prompt(None, None, seen), vocabulary)
    ended = await opened.propose(Committed("one two", encode("one two")), 9)
    assert (ended.text, ended.ids, ended.ended) == ("", encode("<|end|>"), True)
    opened = await session(Prompt(None, None, seen), vocabulary)
    cut = await opened.propose(Committed("three", encode("three")), 9)
    assert (cut.text, cut.ids, cut.ended) == (" four", encode(" four"), False)
    await opened.aclose()


@given(st.text())
def test_pieces_join_to_the_text(text):
    """Nothing is lost."""
    assert "".join(split_pieces(text)) == text


@given(st.text("ab 你,\n"), st.lists(st.text("ab 你,\n", max_size=5), max_size=8))
async def test_text_that_comes_in_pieces_is_indexed_as_a_whole(prompt, parts):
    """Proposing after every commit finds what proposing once at the end finds."""
    growing, whole, text = (
        await session(text_prompt(prompt)),
        await session(text_prompt(prompt)),
        "",
    )
    last = await growing.propose(Committed(), 3)
    for part in parts:
        text += part
        last = await growing.propose(Committed(text), 3)
    assert last.text == (await whole.propose(Committed(text), 3)).text


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 6))
def test_the_index_is_a_search(items, k):
    """What is found is the definition: longest suffix, most recent earlier occurrence."""
    index = NgramIndex(4, 2)
    index.extend(items)
    expected = None
    for n in (4, 3, 2):
        for start in range(len(items) - n - 1, -1, -1):
            if items[start : start + n] == items[len(items) - n :]:
                expected = start + n
                break
        if expected is not None:
            break
    found = next(iter(index.find()), None)
    assert found == expected
    if found is not None:
        taken = index.take(found, k)
        assert len(taken) == k
        assert (items + taken)[found : found + k] == taken


def test_looking_up_does_not_grow_with_the_prompt():
    """A lookup touches one key per n-gram size, however long the sequence."""
    index = NgramIndex()
    index.extend(i % 1000 for i in range(50_000))
    keys = []

    class Counting(dict):
        def get(self, key, default=None):
            keys.append(key)
            return super().get(key, default)

    index._after = Counting(index._after)
    assert list(index.find())
    assert len(keys) == 4


def test_n_is_checked():
    """1 <= min_n <= max_n."""
    with pytest.raises(ValueError):
        NgramDrafter(max_n=1, min_n=2)
