"""Drafts that end after a token which the model itself is unsure of."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from specroute.config import parse
from specroute.context import Committed, Prompt
from specroute.draft.drawing import unsure
from specroute.draft.factory import make_drafter
from specroute.draft.local import LocalDrafter
from specroute.draft.pieces import pieces
from specroute.errors import ConfigError
from specroute.vocabulary import load_vocabulary

CHAT = ({"role": "user", "content": "where is my order?"},)
K = 12


@pytest.fixture
def vocabulary(folder):
    return load_vocabulary(folder)


def prompt_of(vocabulary):
    return Prompt(CHAT, None, vocabulary.render(CHAT))


def probabilities(folder, ids, n):
    """(token, its probability at temperature 1) of the model's own greedy continuation."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    found = []
    for _ in range(n):
        with torch.inference_mode():
            row = torch.softmax(model(torch.tensor([ids])).logits[0, -1].double(), -1)
        token = int(row.argmax())
        found.append((token, float(row[token])))
        ids = (*ids, token)
    return found


async def drafted(folder, vocabulary, least, temperature=0.0):
    drafter = LocalDrafter("tiny", str(folder), device="cpu", min_probability=least)
    session = await drafter.open(prompt_of(vocabulary), vocabulary)
    try:
        return await session.propose(Committed(), K, temperature)
    finally:
        await session.aclose()
        await drafter.aclose()


async def test_a_greedy_draft_ends_after_its_first_unsure_token(folder, vocabulary):
    """That token included, at every threshold that lies between two of its probabilities."""
    own = probabilities(folder, prompt_of(vocabulary).ids, K)
    for least in (p * 1.001 for _, p in own):
        wanted = next(i for i, (_, p) in enumerate(own, 1) if p < least)
        proposal = await drafted(folder, vocabulary, least)
        assert proposal.ids == tuple(token for token, _ in own[:wanted])
        assert not proposal.ended


async def test_zero_ends_no_draft(folder, vocabulary):
    """The default."""
    proposal = await drafted(folder, vocabulary, 0.0)
    assert len(proposal.ids) == K


async def test_a_drawn_draft_keeps_the_unsure_token_and_its_q(folder, vocabulary):
    """Only what comes after it is not drafted: whether it stands is still judged."""
    proposal = await drafted(folder, vocabulary, 1.0, temperature=1.0)
    assert len(proposal.ids) == len(proposal.q) == 1
    assert 0 < proposal.q[0][proposal.ids[0]] < 1


async def test_a_whole_draft_goes_on_after_it(folder, vocabulary):
    """A draft of the whole answer has as many tokens as without a threshold."""
    drafter = LocalDrafter("tiny", str(folder), device="cpu", min_probability=1.0)
    session = await drafter.open(prompt_of(vocabulary), vocabulary)
    made = [piece.ids async for piece in pieces(session, Committed("", ()), K)]
    assert [len(ids) for ids in made] == [1] * K
    own = probabilities(folder, prompt_of(vocabulary).ids, K)
    assert [ids[0] for ids in made] == [token for token, _ in own]
    await session.aclose()
    await drafter.aclose()


def test_unsure_reads_q_or_the_logits():
    """Of a drawn token its q at the draft's temperature, of a greedy one softmax at 1."""
    logits = torch.tensor([0.0, 0.0])
    assert unsure(logits, None, 0, 0.51)
    assert not unsure(logits, None, 0, 0.5)
    assert unsure(logits, [0.9, 0.1], 1, 0.2)
    assert not unsure(logits, [0.9, 0.1], 0, 0.2)
    assert not unsure(logits, None, 0, 0.0)


def test_it_is_read_from_the_config():
    """For local drafts, from 0 to 1."""
    table = {"kind": "local", "model": "m", "min_probability": 0.4}
    config = parse({"version": 1, "drafts": {"d": table}})
    drafter = make_drafter(config.drafts["d"], lambda name: None)
    assert drafter.min_probability == 0.4
    for bad in (-0.1, 1.1, "often"):
        with pytest.raises(ConfigError, match="min_probability"):
            parse({"version": 1, "drafts": {"d": {**table, "min_probability": bad}}})
    with pytest.raises(ConfigError, match="only for kind = 'local'"):
        parse({"version": 1, "drafts": {"d": {"kind": "ngram", "min_probability": 0.4}}})
