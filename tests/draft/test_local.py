"""The local drafter: what it drafts, what it recomputes, how it fails, how it ends."""

import asyncio
import json
import threading
from collections import Counter

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from specroute.context import Committed, Prompt
from specroute.draft import local, speech, stepper
from specroute.draft.caches import Caches
from specroute.draft.llama import PAGE, LlamaCache
from specroute.draft.local import LocalDrafter
from specroute.draft.pages import PagePool
from specroute.errors import DraftError
from specroute.vocabulary import load_vocabulary
from tests.support.distribution import total_variation, tv_quantile
from tests.support.forked import in_a_child, needs_fork
from tests.support.tiny import TEXT, save_model, save_tokenizer

CHAT = ({"role": "user", "content": "where is my order?"},)


@pytest.fixture
def vocabulary(folder):
    return load_vocabulary(folder)


@pytest.fixture
async def drafter(folder):
    drafter = LocalDrafter("tiny", str(folder), device="cpu")
    yield drafter
    await drafter.aclose()


def generate(folder, ids, n):
    """transformers' own greedy continuation."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    out = model.generate(torch.tensor([ids]), max_new_tokens=n, do_sample=False, pad_token_id=0)
    return tuple(out[0, len(ids) :].tolist())


def prompt_of(vocabulary):
    return Prompt(CHAT, None, vocabulary.render(CHAT))


async def test_greedy_drafts_are_the_models_own(folder, drafter, vocabulary):
    """Round by round, whatever was accepted: what ``generate`` would go on with."""
    prompt = prompt_of(vocabulary)
    session = await drafter.open(prompt, vocabulary)
    committed: tuple[int, ...] = ()
    for k, accepted, recovered in [(4, 4, 17), (6, 2, 99), (1, 1, 5), (5, 0, 200), (3, 3, None)]:
        proposal = await session.propose(Committed(vocabulary.decode(committed), committed), k)
        assert proposal.ids == generate(folder, prompt.ids + committed, k)
        assert (proposal.q, len(proposal)) == (None, k)
        committed += proposal.ids[:accepted] + (() if recovered is None else (recovered,))
    await session.aclose()


async def test_nothing_cached_is_recomputed(drafter, vocabulary):
    """Each round forwards only tokens that are new to the cache, then k - 1 of its own draft."""
    prompt = prompt_of(vocabulary)
    session = await drafter.open(prompt, vocabulary)

    async def forwarded(committed, k):
        before = drafter.forwarded
        proposal = await session.propose(Committed("", committed), k)
        return proposal.ids, drafter.forwarded - before

    first, count = await forwarded((), 4)
    assert count == len(prompt.ids) + 3
    # All accepted and a bonus: the last draft was never forwarded, the bonus is new.
    committed = (*first, 50)
    second, count = await forwarded(committed, 4)
    assert count == 2 + 3
    # One accepted and a correction: the correction alone is new.
    committed += (second[0], 60)
    _, count = await forwarded(committed, 4)
    assert count == 1 + 3
    # Nothing new: only the last token is looked at again.
    _, count = await forwarded(committed, 1)
    assert count == 1
    await session.aclose()
    assert drafter.cached_tokens == 0


async def test_sampled_drafts_are_drawn_from_exactly_q(folder, vocabulary):
    """q is softmax(logits / T), one a token, and tokens are distributed as q."""
    drafter = LocalDrafter(
        "tiny", str(folder), device="cpu", generator=lambda: np.random.default_rng(3)
    )
    prompt = prompt_of(vocabulary)
    session = await drafter.open(prompt, vocabulary)
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.inference_mode():
        logits = model(torch.tensor([prompt.ids])).logits[0, -1].double()
    expected = torch.softmax(logits / 0.8, -1).numpy()
    counts, n = Counter(), 3000
    for _ in range(n):
        proposal = await session.propose(Committed("", ()), 1, 0.8)
        counts[proposal.ids[0]] += 1
    q = proposal.q[0]
    assert q.dtype == np.float64
    assert abs(q.sum() - 1) < 1e-12
    assert np.abs(q - expected).max() < 1e-5
    p = dict(enumerate(q.tolist()))
    assert total_variation(counts, p) < tv_quantile(p, n)
    longer = await session.propose(Committed("", ()), 5, 0.8)
    assert len(longer.q) == len(longer.ids) == 5
    assert all(q[i] > 0 for q, i in zip(longer.q, longer.ids, strict=True))
    await drafter.aclose()


async def test_sessions_draw_their_own_numbers(drafter, vocabulary):
    """Two sessions with the same prompt don't share a seed."""
    prompt = prompt_of(vocabulary)
    a, b = [await drafter.open(prompt, vocabulary) for _ in range(2)]
    drafts = [await s.propose(Committed("", ()), 12, 3.0) for s in (a, b)]
    assert drafts[0].ids != drafts[1].ids


async def test_a_draft_ends_with_its_end_token(tmp_path, vocabulary):
    """The end token's id is last, gives no text, and nothing follows it."""
    save_tokenizer(tmp_path)
    save_model(tmp_path)
    probe = LocalDrafter("probe", str(tmp_path), device="cpu")
    prompt = prompt_of(vocabulary)
    ids = (await (await probe.open(prompt, vocabulary)).propose(Committed("", ()), 6)).ids
    await probe.aclose()
    end = ids[3]
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [end]}))
    drafter = LocalDrafter("tiny", str(tmp_path), device="cpu")
    proposal = await (await drafter.open(prompt, vocabulary)).propose(Committed("", ()), 6)
    cut = ids[: ids.index(end) + 1]
    assert (proposal.ids, proposal.ended) == (cut, True)
    await drafter.aclose()


async def test_an_unknown_vocabulary_gets_text(drafter, vocabulary):
    """Without the target's ids: own template, text only, greedy, whole characters."""
    session = await drafter.open(Prompt(CHAT, None, (1, 2, 3)), None)
    proposal = await session.propose(Committed("您的", (9, 9)), 8, 0.9)
    assert (proposal.ids, proposal.q) == (None, None)
    own = await drafter.open(Prompt(CHAT, None), vocabulary)
    same = await own.propose(Committed("您的"), 12)
    assert proposal.text
    assert same.text.startswith(proposal.text)
    assert same.ids is not None


async def test_text_is_continued_where_there_is_no_chat(drafter):
    """A completions prompt is text; without anything to go by the draft says so."""
    session = await drafter.open(Prompt(None, "def main("), None)
    assert (await session.propose(Committed(), 4)).ids is None
    with pytest.raises(DraftError, match="neither messages nor text"):
        await drafter.open(Prompt(None, None), None)


async def test_a_draft_needs_its_own_template_for_a_chat(tmp_path):
    """A template is never guessed."""
    save_model(save_tokenizer(tmp_path, template=None))
    drafter = LocalDrafter("tiny", str(tmp_path), device="cpu")
    with pytest.raises(DraftError, match="no chat template"):
        await drafter.open(Prompt(CHAT, None), None)
    await drafter.aclose()


async def test_a_character_may_straddle_commit_and_draft(drafter, vocabulary, monkeypatch):
    """The draft's text starts with the whole character, as the engine's own decoding does."""
    ids = vocabulary.encode("🎉!")
    split = next(i for i in range(1, len(ids)) if vocabulary.decode(ids[:i]).endswith("\ufffd"))
    session = await drafter.open(prompt_of(vocabulary), vocabulary)
    forced = iter(ids[split:])
    monkeypatch.setattr(speech, "draw", lambda *_: (next(forced), None))
    proposal = await session.propose(Committed("", ids[:split]), len(ids) - split)
    assert proposal.text == "🎉!"


async def test_a_long_prompt_is_forwarded_in_blocks(drafter, vocabulary, monkeypatch, folder):
    """Blocks change nothing in the result."""
    ids = vocabulary.encode(TEXT)
    whole = await (await drafter.open(Prompt(None, None, ids), vocabulary)).propose(Committed(), 5)
    monkeypatch.setattr(stepper, "BLOCK", 16)
    other = LocalDrafter("other", str(folder), device="cpu")  # shares no page with the first
    blocks = await (await other.open(Prompt(None, None, ids), vocabulary)).propose(Committed(), 5)
    assert blocks.ids == whole.ids == generate(folder, ids, 5)
    assert other._stepper.steps == -(-len(ids) // 16) + 4
    await other.aclose()


async def test_drafts_stop_at_the_models_positions(tmp_path, vocabulary):
    """K shrinks at the context's end, down to nothing."""
    save_model(save_tokenizer(tmp_path), positions=20)
    drafter = LocalDrafter("tiny", str(tmp_path), device="cpu")
    session = await drafter.open(Prompt(None, None, tuple(range(5, 22))), vocabulary)
    assert len(await session.propose(Committed("", ()), 8)) == 3
    assert len(await session.propose(Committed("", (1, 2, 3)), 8)) == 0
    assert len(await session.propose(Committed("", ()), 0)) == 0
    await drafter.aclose()


async def test_old_caches_give_way(drafter, vocabulary):
    """Tokens cached in all are bounded; who comes back after being evicted starts again."""
    prompt = prompt_of(vocabulary)
    a, b = [await drafter.open(prompt, vocabulary) for _ in range(2)]
    first = await a.propose(Committed("", ()), 3)
    drafter._loaded.caches.limit = len(prompt.ids) + 5
    await b.propose(Committed("", ()), 3)
    assert drafter.cached_tokens == len(prompt.ids) + 2
    before = drafter.forwarded
    assert (await a.propose(Committed("", ()), 3)).ids == first.ids
    assert drafter.forwarded - before == len(prompt.ids) + 2


def test_a_closed_sessions_cache_is_not_put_back():
    """Closing while the worker still has the cache."""
    caches = Caches(10)
    caches.open(1)
    pool = PagePool(4)
    cache = LlamaCache(pool)
    cache.reserve(2)
    cache.filled([1, 2])
    caches.close(1)
    caches.put(1, cache)
    assert (caches.tokens, caches.take(1), pool.used) == (0, None, 0)


async def test_cancelling_ends_the_draft_at_its_next_forward(drafter, vocabulary):
    """The worker stops, the cache stays sound, and the next draft is what it would have been."""
    prompt = prompt_of(vocabulary)
    session = await drafter.open(prompt, vocabulary)
    expected = (await session.propose(Committed("", ()), 6)).ids
    decoder, entered, release = drafter._loaded.decoder, threading.Event(), threading.Event()
    forward, calls = decoder.forward, []

    def slow(ids, cache):
        calls.append(ids)
        entered.set()
        assert release.wait(10)
        return forward(ids, cache)

    decoder.forward = slow
    task = asyncio.create_task(session.propose(Committed("", expected[:2]), 40))
    await asyncio.to_thread(entered.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    release.set()
    decoder.forward = forward
    again = await session.propose(Committed("", ()), 6)  # behind the cancelled job in the worker
    assert len(calls) == 1
    assert again.ids == expected


async def test_a_missing_model_is_not_tried_on_every_request(tmp_path, vocabulary):
    """The failure names the folder, is remembered, and is forgotten after a while."""
    now = [0.0]
    drafter = LocalDrafter("tiny", str(tmp_path / "none"), clock=lambda: now[0])
    prompt = prompt_of(vocabulary)
    with pytest.raises(DraftError, match="could not be loaded"):
        await drafter.open(prompt, vocabulary)
    save_model(save_tokenizer(tmp_path / "none"))
    with pytest.raises(DraftError, match="not tried again for 300 s"):
        await drafter.open(prompt, vocabulary)
    now[0] += local.RETRY_LOAD
    assert len(await (await drafter.open(prompt, vocabulary)).propose(Committed("", ()), 2)) == 2
    await drafter.aclose()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"device": "tpu"}, "device is 'tpu'"),
        ({"device": "cuda:x"}, "device is 'cuda:x'"),
        ({"dtype": "int8"}, "dtype is 'int8'"),
        ({"max_memory": "1KB"}, "max_memory is 1KB"),
        ({"max_memory": "lots"}, "max_memory is 'lots'"),
    ],
)
async def test_settings_that_can_not_be_met(folder, settings, message):
    """They are load failures with a sentence."""
    drafter = LocalDrafter("tiny", str(folder), **settings)
    with pytest.raises(DraftError, match=message):
        await drafter.load()
    await drafter.aclose()


async def test_max_memory_bounds_the_caches(folder):
    """What the weights leave is the caches'."""
    drafter = LocalDrafter("tiny", str(folder), device="cpu", max_memory="1 MiB")
    await drafter.load()
    per_token = 2 * 2 * 2 * 16 * 4
    weights = 4 * (2 * 400 * 64 + 64 + 2 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128 + 2 * 64))
    assert drafter._loaded.decoder.pool.most == (2**20 - weights) // per_token // PAGE
    await drafter.aclose()


async def test_loading_is_silent(folder, capfd):
    """No progress bar on the user's terminal."""
    drafter = LocalDrafter("tiny", str(folder), device="cpu")
    await drafter.load()
    await drafter.aclose()
    assert capfd.readouterr() == ("", "")


async def test_only_safetensors_are_loaded(tmp_path):
    """A pickle is refused."""
    save_model(save_tokenizer(tmp_path))
    weights = tmp_path / "model.safetensors"
    torch.save({}, tmp_path / "pytorch_model.bin")
    weights.unlink()
    drafter = LocalDrafter("tiny", str(tmp_path))
    with pytest.raises(DraftError, match="could not be loaded"):
        await drafter.load()
    await drafter.aclose()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "ran out of memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "ran out of memory"),
        (IndexError("index out of range"), "failed: index out of range"),
    ],
)
async def test_a_fault_while_drafting(folder, vocabulary, error, message):
    """A sentence, the cache dropped, a while of quiet, then it is tried again."""
    now = [0.0]
    drafter = LocalDrafter("tiny", str(folder), device="cpu", clock=lambda: now[0])
    prompt = prompt_of(vocabulary)
    session = await drafter.open(prompt, vocabulary)
    expected = await session.propose(Committed("", ()), 3)
    decoder = drafter._loaded.decoder
    forward = decoder.forward

    def broken(ids, cache):
        raise error

    decoder.forward = broken
    with pytest.raises(DraftError, match=message):
        await session.propose(Committed("", (5,)), 3)
    assert drafter.cached_tokens == 0
    decoder.forward = forward
    for attempt in (session.propose(Committed("", ()), 3), drafter.open(prompt, vocabulary)):
        with pytest.raises(DraftError, match="not tried again"):
            await attempt
    now[0] += local.RETRY_FORWARD[0]
    assert (await session.propose(Committed("", ()), 3)).ids == expected.ids
    await drafter.aclose()


async def test_closing_is_idempotent_and_final(folder, vocabulary):
    """After it nothing is drafted."""
    drafter = LocalDrafter("tiny", str(folder), device="cpu")
    session = await drafter.open(prompt_of(vocabulary), vocabulary)
    await session.aclose()
    await session.aclose()
    assert len(await session.propose(Committed("", ()), 3)) == 0
    await drafter.aclose()
    await drafter.aclose()
    with pytest.raises(DraftError, match="is closed"):
        await drafter.open(prompt_of(vocabulary), vocabulary)


@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_of_a_process_that_drafted_is_refused(folder):
    """Its torch could hang; a sentence says what to do instead."""

    async def load():
        drafter = LocalDrafter("tiny", str(folder), device="cpu")
        try:
            await drafter.load()
        finally:
            await drafter.aclose()
        return "loaded"

    assert asyncio.run(load()) == "loaded"
    assert "start workers with 'spawn'" in in_a_child(lambda: asyncio.run(load()))
