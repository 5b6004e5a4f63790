"""Drafting across vocabularies: what is drafted, what it becomes at the target, what it loses."""

import math
import random
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from specroute.acceptance import verify
from specroute.answer import Answer
from specroute.context import Committed, Prompt
from specroute.draft.crossed import ENOUGH, MEASURED, Pair, TwoVocabularies
from specroute.draft.local import LocalDrafter
from specroute.draft.own_ids import WINDOW, OwnIds
from specroute.vocabulary import load_vocabulary
from tests.support.distribution import pairs, total_variation, tv_quantile
from tests.support.steps import driven
from tests.support.tiny import TEXT, save_model, save_sentencepiece, save_tokenizer

CHAT = ({"role": "user", "content": "where is my order?"},)


@pytest.fixture(scope="module")
def vocabularies(tmp_path_factory):
    """Two byte-level trainings of different size, and a SentencePiece one."""
    made = tmp_path_factory.mktemp
    return {
        "a": load_vocabulary(save_tokenizer(made("a"))),
        "b": load_vocabulary(save_tokenizer(made("b"), text=TEXT[::-1], vocab_size=330)),
        "sp": load_vocabulary(save_sentencepiece(made("sp"))),
    }


@pytest.fixture
def vocabulary(folder):
    return load_vocabulary(folder)


@pytest.fixture
def other(vocabularies):
    return vocabularies["b"]


async def opened(folder, target, way, prompt=None, **settings):
    drafter = LocalDrafter("tiny", str(folder), device="cpu", way=way, **settings)
    return drafter, await drafter.open(prompt or Prompt(CHAT, None, (1, 2, 3)), target)


def logits_after(folder, ids):
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0, -1].double()


# --- TLI ---------------------------------------------------------------------------------------


async def test_a_drawn_token_is_drawn_from_exactly_its_q(folder, vocabulary, other):
    """q is softmax(logits / T) over the shared tokens, in the target's ids, and sums to 1."""
    generator = np.random.default_rng(3)
    drafter, session = await opened(folder, other, "tli", generator=lambda: generator)
    crossing = Pair(vocabulary, other, vocabulary.size).crossing
    logits = logits_after(folder, vocabulary.render(CHAT) + vocabulary.encode("Your"))
    expected = torch.softmax(logits[torch.from_numpy(crossing.own)] / 0.8, 0).numpy()
    committed = Committed("Your", other.encode("Your"))
    counts, n = Counter(), 1500
    for _ in range(n):
        proposal = await session.propose(committed, 1, 0.8)
        counts[proposal.ids[0]] += 1
    (q,) = proposal.q
    p = {i: q[i] for i in range(other.size)}
    assert abs(sum(p.values()) - 1) < 1e-12
    assert max(abs(q[t] - e) for t, e in zip(crossing.target, expected, strict=True)) < 1e-5
    assert {i for i in p if p[i] > 0} == {i for i in p if crossing.holds(i)}
    assert total_variation(counts, p) < tv_quantile(p, n)
    longer = await session.propose(committed, 5, 0.8)
    assert len(longer.q) == len(longer.ids)
    assert all(q[i] > 0 for q, i in zip(longer.q, longer.ids, strict=True))
    await drafter.aclose()


@pytest.mark.parametrize("temperature", [0.7, 1.3])
def test_drawn_drafts_leave_the_targets_distribution(vocabularies, temperature):
    """Drafts of two tokens from a model that says also what the target can't, judged by rejection
    sampling: what is committed is distributed as the target's p, pairs included."""
    own, target = vocabularies["b"], vocabularies["sp"]
    speech = speech_of(own, target, "tli")
    crossing = Pair(own, target, own.size).crossing
    shared = dict(zip(crossing.target.tolist(), crossing.own.tolist(), strict=True))
    only = [i for i, t in enumerate(target.tokens) if t and not crossing.holds(i)]
    said = [*list(shared)[:-1:20], *only[:8]]
    assert len(said) >= 20
    rng = np.random.default_rng(2)
    rows = rng.dirichlet(np.full(len(said), 0.4), len(said) + 1).tolist()
    p = {a: dict(zip(said, row, strict=True)) for a, row in zip([-1, *said], rows, strict=True)}
    # Some of the model's mass is on tokens that the target never says, or hasn't got.
    models = {}
    for last in p:
        odd = torch.randperm(own.size, generator=torch.Generator().manual_seed(last + 1))[:40]
        logits = torch.full((own.size,), -30.0).index_fill(0, odd, -3.0)
        for token in said:
            if token in shared:
                logits[shared[token]] = math.log(p[last][token] + 0.02)
        models[last] = logits
    back = {shared[token]: token for token in said if token in shared}

    def step(ids):
        return models[back.get(ids[-1], -1) if ids else -1]

    counts, coins, n = Counter(), random.Random(3), 4000
    for _ in range(n):
        proposal = driven(step, speech.draft((), Committed("", ()), 2, 99, temperature))
        first = proposal.ids[0]
        seen = [p[-1], p.get(first, p[-1])][: len(proposal.ids)]
        found = verify(proposal.ids, seen, proposal.q, coins)
        tokens = list(proposal.ids[: found.accepted])
        if found.token is not None:
            tokens.append(found.token)
        if len(tokens) < 2:
            row = p[tokens[0]]
            tokens += coins.choices(list(row), list(row.values()))
        counts[tuple(tokens)] += 1
    expected = pairs(p[-1], p)
    assert total_variation(counts, expected) < tv_quantile(expected, n)


async def test_a_greedy_draft_is_the_best_of_the_shared(folder, vocabulary, other):
    """Step by step, the argmax over the shared tokens, fed back in the model's own ids."""
    drafter, session = await opened(folder, other, "tli")
    crossing = Pair(vocabulary, other, vocabulary.size).crossing
    proposal = await session.propose(Committed("", ()), 6)
    context, expected = vocabulary.render(CHAT), []
    for _ in range(6):
        best = int(logits_after(folder, context)[torch.from_numpy(crossing.own)].argmax())
        expected.append(int(crossing.target[best]))
        context += (int(crossing.own[best]),)
    assert proposal.ids == tuple(expected)
    assert proposal.q is None
    assert other.decode(proposal.ids).startswith(proposal.text)
    await drafter.aclose()


async def test_only_new_tokens_are_forwarded(folder, vocabulary, other):
    """The cache is cropped to what the re-encoded answer shares with it."""
    drafter, session = await opened(folder, other, "tli")
    text = "Hello, how can I help you"
    await session.propose(Committed(text, other.encode(text)), 1)
    before = drafter.forwarded
    longer = text + " today? Your"
    await session.propose(Committed(longer, other.encode(longer)), 1)
    assert drafter.forwarded - before == len(vocabulary.encode(longer)) - len(
        vocabulary.encode(text)
    )
    await drafter.aclose()


# --- a model that can write: logits that follow a text -----------------------------------------


class Writer:
    """Stands for a model that wants to say ``text`` in its own tokens; ``slips``: the share of
    steps at which it wants something else."""

    def __init__(self, vocabulary, text, slips=0.0, seed=0):
        self.vocabulary = vocabulary
        self.data = b" " * OwnIds(vocabulary).opens + text.encode()
        self.slips, self.rng = slips, random.Random(seed)
        self.context = []

    def step(self, ids):
        self.context.extend(ids)
        tokens = self.vocabulary.tokens
        said = b"".join(tokens[i] or b"" for i in self.context)
        logits = torch.zeros(self.vocabulary.size)
        if self.rng.random() < self.slips:
            logits[self.rng.randrange(self.vocabulary.size)] = 20.0
        else:
            logits[self.next(said)] = 20.0
        return logits

    def next(self, said):
        """The longest token that goes on with the text."""
        if not self.data.startswith(said):
            return self.vocabulary.encode("\n")[-1]
        rest = self.data[len(said) :]
        if not rest:
            return self.vocabulary.end_id
        fits = [
            (len(t), i) for i, t in enumerate(self.vocabulary.tokens) if t and rest.startswith(t)
        ]
        return max(fits)[1]


def speech_of(own, target, way, pair=None):
    generator = np.random.default_rng(1)
    pair = pair or Pair(own, target, own.size)
    return TwoVocabularies(own, target, pair, lambda: generator, way)


def bytewise(vocabulary, ids, rng, share):
    """The same text with some tokens spelled byte by byte, as a target may well choose to."""
    spelled = {t: i for i, t in enumerate(vocabulary.tokens) if t and len(t) == 1}
    out = []
    for token in ids:
        piece = vocabulary.tokens[token]
        if piece is not None and rng.random() < share:
            out.extend(spelled[bytes([byte])] for byte in piece)
        else:
            out.append(token)
    return out


def rounds(own, target, answer, text, *, way, k, slips=0.0, seed=0):
    """Greedy rounds against a target that says ``answer``; (texts handed on, rounds, drafted,
    accepted, the answer)."""
    speech = speech_of(own, target, way)
    writer = Writer(own, text, slips, seed)
    result = Answer(max_tokens=None, stop=(), vocabulary=target)
    at = count = drafted = accepted = 0
    pieces = []
    while result.finish is None:
        committed = Committed(result.text, tuple(result.ids))
        writer.context = []
        context = speech.read(committed)
        proposal = driven(writer.step, speech.draft(context, committed, k, 99, 0.0))
        ids = proposal.ids
        assert len(ids) <= k
        hit = 0
        while hit < len(ids) and ids[hit] == answer[at + hit]:
            hit += 1
            if ids[hit - 1] in target.eos_ids:
                break
        commit = [*ids[:hit], *answer[at + hit : at + hit + 1]]
        at += len(commit)
        count, drafted, accepted = count + 1, drafted + len(ids), accepted + hit
        pieces.append(result.push_ids(tuple(commit)).text)
    return pieces, count, drafted, accepted, result


PAIRS = [("a", "b"), ("b", "a"), ("a", "sp"), ("sp", "a"), ("sp", "b"), ("b", "sp")]
WORDS = st.sampled_from(
    [
        "order",
        "refund ",
        " shipped",
        "您的订单",
        "🎉",
        "👩🏽‍🚀",
        "e\u0301",
        "\u0301",
        "\n    ",
        "return 0",
        "  ",
        "é",
        "한국어",
        "<|end|",
        "7731",
    ]
)
TEXTS = st.one_of(st.text(max_size=20), st.lists(WORDS, max_size=8).map("".join))


@settings(max_examples=40)
@given(
    text=TEXTS,
    pair=st.sampled_from(PAIRS),
    way=st.sampled_from(["tli", "slem"]),
    k=st.integers(1, 6),
    slips=st.sampled_from([0.0, 0.3]),
    spelled=st.sampled_from([0.0, 0.4]),
    seed=st.integers(0, 99),
)
def test_committed_text_is_what_the_target_alone_would_say(
    vocabularies, text, pair, way, k, slips, spelled, seed
):
    """Greedy rounds of any draft, at a target that may cut its text anywhere, characters
    included: every prefix handed on is a prefix of the target's text, and the end is its end."""
    own, target = (vocabularies[name] for name in pair)
    rng = random.Random(seed)
    answer = [*bytewise(target, target.encode(text), rng, spelled), target.end_id]
    alone = Answer(max_tokens=None, stop=(), vocabulary=target)
    plain = alone.push_ids(tuple(answer)).text
    pieces, _, _, _, result = rounds(
        own, target, answer, text, way=way, k=k, slips=slips, seed=seed
    )
    said = ""
    for piece in pieces:
        said += piece
        assert plain.startswith(said)
        piece.encode()
    assert said == result.text == plain
    assert result.ids == alone.ids
    assert result.tokens == alone.tokens
    if "<|" not in text and target is not vocabularies["sp"]:
        assert plain == text


@pytest.mark.parametrize(("own", "target"), PAIRS)
def test_a_perfect_draft_is_accepted_whole(vocabularies, own, target):
    """SLEM, K = 4: rounds commit five tokens, whatever the two vocabularies; a token may be cut
    short where a draft ends."""
    own, target = vocabularies[own], vocabularies[target]
    text = "Your order 7731 was shipped, 您的订单已发货 🎉.\n    return 0\n"
    answer = [*target.encode(text), target.end_id]
    _, count, drafted, accepted, _ = rounds(own, target, answer, text, way="slem", k=4)
    assert count <= -(-len(answer) // 5) + 2
    assert accepted >= 0.8 * drafted


def test_tli_says_what_is_shared(vocabularies):
    """A model whose every token is shared loses nothing by the restriction; the end is drafted."""
    own, target = vocabularies["b"], vocabularies["a"]
    speech = speech_of(own, target, "tli")
    writer = Writer(own, "zq")
    committed = Committed("", ())
    proposal = driven(writer.step, speech.draft(speech.read(committed), committed, 9, 99, 0.0))
    assert proposal.ids == (*target.encode("zq"), target.end_id)
    assert (proposal.text, proposal.ended) == ("zq", True)


def test_slem_says_it_in_the_targets_own_tokens(vocabularies):
    """One more token is drafted than is proposed, so that the last one is whole."""
    own, target = vocabularies["a"], vocabularies["b"]
    text = "Your order 7731 was shipped"
    ids = target.encode(text)
    for k in range(1, len(ids)):
        speech = speech_of(own, target, "slem")
        writer = Writer(own, text)
        proposal = driven(writer.step, speech.draft((), Committed("", ()), k, 99, 0.9))
        assert (proposal.ids, proposal.q) == (ids[:k], None)
        assert proposal.text == target.decode(ids[:k])
    whole = driven(
        Writer(own, text).step,
        speech_of(own, target, "slem").draft((), Committed("", ()), 99, 99, 0.0),
    )
    assert whole.ids == (*ids, target.end_id)
    assert whole.ended


def test_a_special_token_ends_a_draft(vocabularies):
    """Another than the end: no text, no id."""
    own, target = vocabularies["a"], vocabularies["b"]
    special = max(own.special_ids - own.eos_ids)
    script = [*own.encode(" order"), special, *own.encode(" was")]

    def forced():
        ids = iter(script)

        def step(_):
            logits = torch.zeros(own.size)
            logits[next(ids)] = 9.0
            return logits

        return step

    slem = driven(forced(), speech_of(own, target, "slem").draft((), Committed("", ()), 9, 99, 0.0))
    assert target.decode(slem.ids) == slem.text == " order"
    text = TwoVocabularies(own, None, None, lambda: None)
    assert driven(forced(), text.draft((), Committed(), 9, 99, 0.0)).text == " order"
    tli = driven(forced(), speech_of(own, target, "tli").draft((), Committed("", ()), 3, 99, 0.0))
    assert not set(tli.ids) & (target.special_ids - target.eos_ids)


def test_a_begun_character_is_read_and_finished(vocabularies):
    """The target committed half an emoji: the model reads those bytes and says the others."""
    own, target = vocabularies["b"], vocabularies["a"]
    ids = target.encode("ab🎉 ok")
    cut = next(n for n in range(1, len(ids)) if target.decode(ids[:n]).endswith("\ufffd"))
    committed = Committed(target.decode(ids[:cut]).rstrip("\ufffd"), ids[:cut])
    for way in ("tli", "slem"):
        speech = speech_of(own, target, way)
        read = speech.read(committed)
        begun = b"".join(target.tokens[i] for i in ids[:cut])
        assert b"".join(own.tokens[i] for i in read) == begun
        proposal = driven(Writer(own, "ab🎉 ok").step, speech.draft(read, committed, 9, 99, 0.0))
        assert (
            b"".join(target.tokens[i] or b"" for i in proposal.ids)
            == "ab🎉 ok".encode()[len(begun) :]
        )
        assert proposal.text == "🎉 ok"


@given(text=TEXTS, k=st.integers(1, 5), own=st.sampled_from(["a", "b", "sp"]))
def test_text_drafts_are_whole_and_leave_trailing_space(vocabularies, text, k, own):
    """Text mode: what is proposed continues the text, ends in no whitespace unless it is all
    there is, and splits no character."""
    own = vocabularies[own]
    speech = TwoVocabularies(own, None, None, lambda: None)
    committed = Committed()
    proposal = driven(
        Writer(own, text).step, speech.draft(speech.read(committed), committed, k, 99, 0.9)
    )
    assert text.startswith(proposal.text)
    assert proposal.ids is None
    if proposal.text.strip() and not proposal.ended:
        assert proposal.text == proposal.text.rstrip()


# --- which of the two ----------------------------------------------------------------------------


def test_greedy_drafts_are_texts_and_drawn_ones_are_shared_tokens(vocabularies):
    """Unless too little is shared, of the draft's mass or of what the target says."""
    own, target = vocabularies["a"], vocabularies["b"]
    pair = Pair(own, target, own.size)
    assert (pair.way(0.0), pair.way(0.7)) == ("slem", "tli")
    logits = torch.full((own.size,), -50.0)
    logits[int(pair.crossing.own[0])] = 0.0
    alone = next(i for i in range(own.size) if i not in set(pair.crossing.own.tolist()))
    logits[alone] = 0.0
    pair.weigh(logits)
    assert abs(pair.mass - 0.5) < 1e-6
    pair.hear([int(pair.crossing.target[0])] * 9 + [min(target.special_ids - target.eos_ids)])
    assert pair.cover == 0.9
    assert pair.mass * pair.cover < ENOUGH
    assert pair.way(0.7) == "slem"
    for _ in range(2 * MEASURED):
        pair.weigh(logits)
    assert pair._asked == MEASURED


async def test_the_choice_is_made_from_what_was_measured(folder, other):
    """A drafter keeps one account of a pair over its sessions."""
    drafter, session = await opened(folder, other, "auto")
    first = await session.propose(Committed("", ()), 4, 1.0)
    assert first.q is not None
    greedy = await session.propose(Committed("", ()), 4)
    assert (greedy.q, greedy.ids is not None) == (None, True)
    pair = drafter._loaded.pair(other)
    special = min(other.special_ids - other.eos_ids)
    pair.hear([special] * 100)
    again = await drafter.open(Prompt(CHAT, None), other)
    assert (await again.propose(Committed("", ()), 4, 1.0)).q is None
    await drafter.aclose()


async def test_a_text_prompt_begins_once(tmp_path, vocabularies):
    """The start token before the prompt's text and nowhere else; the answer is read with it."""
    save_sentencepiece(tmp_path)
    own = load_vocabulary(tmp_path)
    save_model(tmp_path, vocab_size=own.size, eos=2)
    drafter, session = await opened(tmp_path, vocabularies["a"], "slem", Prompt(None, "Your order"))
    seen = []
    forward = drafter._loaded.decoder.forward

    def watched(ids, cache):
        seen.append(tuple(ids))
        return forward(ids, cache)

    drafter._loaded.decoder.forward = watched
    await session.propose(Committed(" was", vocabularies["a"].encode(" was")), 1)
    assert seen[0] == (own.bos_id, *own.encode("Your order was"))
    await drafter.aclose()


async def test_a_chat_is_read_in_the_drafts_own_template(folder, vocabulary, other):
    """Not in the target's, whose ids the prompt holds."""
    drafter, session = await opened(folder, other, "tli")
    await session.propose(Committed("", ()), 1)
    assert drafter.forwarded == len(vocabulary.render(CHAT))
    await drafter.aclose()


# --- reading -------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(st.lists(TEXTS, max_size=30))
def test_a_growing_text_is_read_as_a_whole_one(vocabularies, parts):
    """Encoded again near its end only, the ids still say the text."""
    for vocabulary in vocabularies.values():
        own, text = OwnIds(vocabulary), "Hello " * WINDOW
        own.of(text)
        for part in parts:
            text += part
            ids = own.of(text)
            assert vocabulary.decode(ids) == vocabulary.decode(vocabulary.encode(text))


def test_only_the_end_is_encoded_again(vocabularies):
    """A long answer costs no more a round than a short one."""
    encoded = []

    class Counting:
        tokens = vocabularies["a"].tokens

        def encode(self, text):
            encoded.append(len(text))
            return vocabularies["a"].encode(text)

    own = OwnIds(Counting())
    encoded.clear()
    text = TEXT * 20
    whole = own.of(text)
    assert own.of(text + " and more") == vocabularies["a"].encode(text + " and more")
    assert encoded[0] == len(text)
    assert max(encoded[1:]) < 8 * WINDOW < len(text)
    assert own.of("Another") == vocabularies["a"].encode("Another")
    assert whole == vocabularies["a"].encode(text)
