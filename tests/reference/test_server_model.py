"""A local model behind the server: the same numbers however they are computed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import httpx2
import pytest

from specroute.reference.backend import Work
from specroute.reference.model import ALONE, Model, _pieces
from specroute.reference.running import ReferenceServer
from tests.reference.raw import Http, messages

PROMPTS = [
    "the quick brown",
    "def f(x):",
    "你好",
    "lazy dog the fox",
    "x",
    "return x",
    "jumps over",
]
IDS = {"return_tokens_as_token_ids": True}


@pytest.fixture
def api(model_server: ReferenceServer) -> Iterator[Http]:
    with Http(model_server) as api:
        yield api


def numbers(names: list[str]) -> list[int]:
    """Ids out of ``token_id:N`` names."""
    return [int(name.removeprefix("token_id:")) for name in names]


def plain_greedy(model: Model, ids: list[int], n: int) -> list[int]:
    """transformers' own answer."""
    import torch

    with torch.inference_mode():
        out = model._model.generate(torch.tensor([ids]), max_new_tokens=n, do_sample=False)
    return [int(i) for i in out[0][len(ids) :]]


def test_greedy_is_what_generate_says(api: Http) -> None:
    """Token for token, the end token included."""
    model = api.server.backend
    assert isinstance(model, Model)
    for prompt in PROMPTS[:3]:
        ids = model.encode(prompt, True)
        body = api.complete(prompt=ids, max_tokens=24, temperature=0, logprobs=0, **IDS)
        said = numbers(body["choices"][0]["logprobs"]["tokens"])
        assert said == plain_greedy(model, ids, 24)


def test_scoring_and_decoding_agree(api: Http) -> None:
    """Echo's argmax is the generated token at every position; logprobs differ by rounding only."""
    for prompt in PROMPTS:
        ids = api.post("/tokenize", prompt=prompt).json()["tokens"]
        said = api.complete(prompt=ids, max_tokens=24, temperature=0, logprobs=2, **IDS)
        said_logprobs = said["choices"][0]["logprobs"]
        answer = numbers(said_logprobs["tokens"])
        echo = api.complete(
            prompt=[*ids, *answer], echo=True, logprobs=2, max_tokens=1, temperature=0, **IDS
        )
        logprobs = echo["choices"][0]["logprobs"]
        best = [max(top, key=top.get) for top in logprobs["top_logprobs"][1:]]
        end = len(ids) + len(answer)
        assert numbers(best)[len(ids) - 1 : end - 1] == answer
        scored = logprobs["token_logprobs"][len(ids) : end]
        assert scored == pytest.approx(said_logprobs["token_logprobs"], abs=1e-4)


def test_a_longer_prompt_is_scored_as_from_scratch(api: Http) -> None:
    """What is remembered of an earlier score changes nothing but the time it takes."""
    import torch

    model = api.server.backend
    assert isinstance(model, Model)
    ids = model.encode("jumps over def f(x): 世界 return the lazy dog", True)
    with torch.inference_mode():
        logprobs = torch.log_softmax(model._model(torch.tensor([ids])).logits[0], -1)
    expected = [float(logprobs[i - 1, ids[i]]) for i in range(1, len(ids))]
    for n in (4, 7, 7, 12, 9, 1, len(ids)):
        body = api.complete(prompt=ids[:n], echo=True, logprobs=3, max_tokens=1, **IDS)
        scored = body["choices"][0]["logprobs"]
        assert numbers(scored["tokens"])[:n] == ids[:n]
        assert scored["token_logprobs"][1:n] == pytest.approx(expected[: n - 1], abs=1e-4)
        for i, top in enumerate(scored["top_logprobs"][1:n]):
            best = logprobs[i].topk(3).indices.tolist()
            assert set(numbers(list(top))) == {*best, ids[i + 1]}
        assert api.server.log[-1].charged_prompt_tokens == n


def test_short_ends_read_together_are_scored_as_from_scratch(model_server: ReferenceServer) -> None:
    """More than ALONE of them share a pass: other lengths before and after, the same scores, and
    the same answer from there on."""
    model = model_server.backend
    assert isinstance(model, Model)
    rng = random.Random(5)
    ids = [[rng.randrange(model.size) for _ in range(60)] for _ in range(ALONE + 3)]

    def works(cuts: list[int]) -> list[Work]:
        found = []
        for each, cut in zip(ids, cuts, strict=True):
            state = model.new_state(each[:cut])
            state.computed = cut
            found.append(Work(state, 0, None, 3))
        return found

    begun = [10 + 3 * i for i in range(len(ids))]
    for work in works(begun):
        model.run([work])
    together = works([cut + 5 + 2 * i for i, cut in enumerate(begun)])
    model.run(together)
    for work in together:
        model._prompts.clear()
        alone = Work(model.new_state(list(work.state.ids)), 0, None, 3)
        model.run([alone])
        assert len(work.scored) == len(alone.scored) == len(work.state.ids) - 1
        for (said, tops), (expected, best) in zip(work.scored, alone.scored, strict=True):
            assert said == pytest.approx(expected, abs=1e-4)
            assert [v for _, v in tops] == pytest.approx([v for _, v in best], abs=1e-4)
        for state in (work.state, alone.state):
            state.ids.append(7)
        after = [Work(state, len(state.ids) - 1) for state in (work.state, alone.state)]
        model.run(after)
        assert after[0].scores is not None
        assert after[1].scores is not None
        assert after[0].scores.logprob(3) == pytest.approx(after[1].scores.logprob(3), abs=1e-4)


def test_a_prompt_goes_on_from_an_end_that_is_read_in_the_same_step(
    model_server: ReferenceServer,
) -> None:
    """Many ends share a pass; a later work names one of them as its parent."""
    model = model_server.backend
    assert isinstance(model, Model)
    rng = random.Random(6)
    ids = [[rng.randrange(model.size) for _ in range(30)] for _ in range(ALONE + 1)]
    for size in (20, 26):
        works = [Work(model.new_state(each[:size]), 0, None, 1) for each in ids]
        for work in works:
            work.state.computed = size
        if size == 20:
            model.run(works)
    longer = model.new_state([*ids[0][:26], 9, 9])
    longer.computed = 28
    works.append(Work(longer, 26, works[0].state))
    model.run(works)
    alone = Work(model.new_state(list(longer.ids)), 0)
    model.run([alone])
    assert works[-1].scores is not None
    assert alone.scores is not None
    assert works[-1].scores.logprob(3) == pytest.approx(alone.scores.logprob(3), abs=1e-4)


async def ask(server: ReferenceServer, prompts: list[str], **body: Any) -> list[str]:
    """Texts of completions that are sent at once."""
    async with httpx2.AsyncClient(base_url=server.base_url, timeout=30) as client:
        answers = await asyncio.gather(
            *(
                client.post("/completions", json={"model": server.model, "prompt": p, **body})
                for p in prompts
            )
        )
    return [a.json()["choices"][0]["text"] for a in answers]


@pytest.mark.parametrize("crowd", [1, 4])
async def test_greedy_doesnt_depend_on_who_else_is_there(
    model_server: ReferenceServer, crowd: int
) -> None:
    """Alone, a few at once, or in one padded batch: the same texts."""
    prompts = PROMPTS * crowd
    alone = [(await ask(model_server, [p], max_tokens=16, temperature=0))[0] for p in PROMPTS]
    together = await ask(model_server, prompts, max_tokens=16, temperature=0)
    assert together == alone * crowd
    assert model_server.server is not None
    assert model_server.server.engine.largest > ALONE


async def test_joining_leaving_and_giving_up_disturb_nobody(model_server: ReferenceServer) -> None:
    """Prompts that begin alike, scored or not, some left midway: each answer is generate's own."""
    model = model_server.backend
    assert isinstance(model, Model)
    rng = random.Random(1)
    base = [rng.randrange(2, model.size) for _ in range(16)]
    prompts = [[*base[: rng.randrange(1, 16)], rng.randrange(2, model.size)] for _ in range(24)]
    answers = [plain_greedy(model, ids, 12) for ids in prompts]

    async def one(client: httpx2.AsyncClient, i: int) -> None:
        for _ in range(i):  # arrive a few steps apart
            await client.get(f"{model_server.url}/health")
        body: dict[str, Any] = {"model": model_server.model, "prompt": prompts[i], "max_tokens": 12}
        body |= {"temperature": 0, "logprobs": 0, "echo": i % 5 == 0, "stream": i % 3 == 0, **IDS}
        if body["stream"]:
            async with client.stream("POST", "/completions", json=body) as stream:
                await anext(stream.aiter_bytes())
            return
        answer = await client.post("/completions", json=body)
        said = numbers(answer.json()["choices"][0]["logprobs"]["tokens"])
        assert said[len(prompts[i]) * body["echo"] :] == answers[i]

    limits = httpx2.Limits(max_connections=50)
    async with httpx2.AsyncClient(
        base_url=model_server.base_url, timeout=30, limits=limits, verify=False
    ) as client:
        await asyncio.gather(*(one(client, i) for i in range(len(prompts))))


def test_bytes_of_a_tokenizer_with_metaspace() -> None:
    """Sentencepiece's space and its byte tokens."""

    class Tokenizer:
        all_special_ids: ClassVar = [0]
        added_tokens_decoder: ClassVar[dict[int, Any]] = {}
        backend_tokenizer = SimpleNamespace(decoder="Sequence([Replace, ByteFallback, Fuse])")
        names: ClassVar = ["<s>", "▁the", "<0xE4>", "好", "▁▁"]

        def __len__(self) -> int:
            return len(self.names)

        def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
            return [self.names[i] for i in ids]

    assert _pieces(Tokenizer(), 6) == [b"<s>", b" the", b"\xe4", "好".encode(), b"  ", b""]


async def test_a_seed_is_the_same_alone_and_in_a_crowd(model_server: ReferenceServer) -> None:
    """Sampled answers too."""
    alone = await ask(model_server, ["the quick"], max_tokens=16, seed=5)
    crowd = await ask(model_server, ["the quick", *PROMPTS], max_tokens=16, seed=5)
    assert crowd[0] == alone[0]


def test_what_was_computed_is_read_from_the_cache(api: Http) -> None:
    """A second turn pays for what is new; its answer is the one without a cache."""
    model = api.server.backend
    assert isinstance(model, Model)
    ids = model.encode("over the lazy quick fox brown", True)
    first = api.complete(
        prompt=ids, max_tokens=8, temperature=0, logprobs=0, ignore_eos=True, **IDS
    )
    answer = numbers(first["choices"][0]["logprobs"]["tokens"])
    longer = [*ids, *answer, *model.encode(" dog", True)]
    second = api.complete(prompt=longer, max_tokens=8, temperature=0, logprobs=0, **IDS)
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached == len(ids) + len(answer) - 1  # the last one said was never fed
    assert numbers(second["choices"][0]["logprobs"]["tokens"]) == plain_greedy(model, longer, 8)


def test_a_chat_uses_the_models_template(api: Http) -> None:
    """Prefill included; special tokens of the template are single ids."""
    text = api.post("/apply-template", messages=messages("你好")).json()["prompt"]
    assert text == "<|im_start|>user\n你好<|im_end|>\n<|im_start|>assistant\n"
    tokens = api.post("/tokenize", messages=messages("你好")).json()["tokens"]
    assert api.post("/detokenize", tokens=tokens).json()["prompt"] == text
    whole = api.chat(messages=messages("你好"), max_tokens=8, temperature=0)
    same = api.complete(prompt=tokens, max_tokens=8, temperature=0)
    assert whole["choices"][0]["message"]["content"] == same["choices"][0]["text"]
    turns = [*messages("你好"), {"role": "assistant", "content": "the qui"}]
    tokens = api.post(
        "/tokenize", messages=turns, continue_final_message=True, add_generation_prompt=False
    ).json()["tokens"]
    assert api.post("/detokenize", tokens=tokens).json()["prompt"] == text + "the qui"


def test_texts_of_tokens_add_up(api: Http) -> None:
    """tokens and text_offset of an echo describe its text, characters in pieces included."""
    text = "世界 the é quick\n"
    body = api.complete(prompt=text, echo=True, logprobs=1, max_tokens=0)
    choice = body["choices"][0]
    assert choice["text"] == text == "".join(choice["logprobs"]["tokens"])
    tokens, offsets = choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"]
    for token, offset in zip(tokens, offsets, strict=True):
        assert text.startswith(token, offset)


def test_every_token_has_its_bytes(api: Http) -> None:
    """Joined, they are the text that was tokenised."""
    model = api.server.backend
    assert isinstance(model, Model)
    text = "".join(chr(c) for c in range(32, 0x250)) + "你好，世界\n\t\x00🙂"
    assert b"".join(map(model.piece, model.encode(text, False))).decode() == text


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    """The error comes before the server starts."""
    with pytest.raises((OSError, ValueError), match=str(tmp_path)), ReferenceServer(tmp_path):
        pass
