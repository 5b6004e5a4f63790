"""Trains the bundled pair: a tokenizer, a tiny target, and a tinier draft that imitates it.

    python -m specroute.reference.train --out DIR [--minutes 37]

Knows the models' shapes and the recipe. Doesn't know the text (`corpus`) nor how the result is
judged (`acceptance_check`).

Four stages, each skipped if its result is in DIR, so that a stopped run goes on where it was:
a byte-level BPE tokenizer; the target, on generated conversations and library code; the
target's own greedy answers to service prompts; the draft, on those answers and on library code.
Training the draft on what the target really says (on-policy) is what makes the two agree.
Stages end by the clock, so the seed fixes the data and the start but not the exact weights.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from specroute.reference.corpus import TRAFFIC, Message, training_conversations, training_texts
from specroute.reference.optimizer import Muon

BOS, PAD, START, EOS = "<|bos|>", "<|pad|>", "<|im_start|>", "<|im_end|>"
SPECIAL = (PAD, BOS, START, EOS)
VOCABULARY = 4096
CONTEXT = 1024
# Digits go in pairs, so that an order number is a few tokens and every pair is its own token.
WORDS = (
    r"'(?:s|t|re|ve|m|ll|d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,2}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEMPLATE = (
    "{{ '<|bos|>' }}{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SHAPES = {
    "target": {"hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 4, "heads": 8},
    "draft": {"hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 2, "heads": 4},
}
SERVICE_SHARE = 0.6  # of the training tokens, the rest is code
BATCH_TOKENS = 4096
ANSWER_TOKENS = 160
REPEAT_WINDOW = 48
UNLIKELIHOOD = {"target": 0.5, "draft": 0.0}
Example = tuple[list[int], list[bool]]  # token ids, and which of them are learnt


def train_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE of 4096 tokens, its markers single ids, with a ChatML template.

    It adds no token by itself: the template writes the one `<|bos|>`.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=16,  # keeps whole Chinese phrases from becoming tokens
        show_progress=False,
    )
    tokenizer.train_from_iterator(training_texts(seed), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        additional_special_tokens=[START],
        chat_template=TEMPLATE,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )


def build(role: str, tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """A fresh model in the shape of `role`, "target" or "draft"."""
    torch.manual_seed(seed)
    shape = dict(SHAPES[role])
    heads = shape.pop("heads")
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **shape,
    )
    return LlamaForCausalLM(config)


def encode(tokenizer: PreTrainedTokenizerFast, messages: list[Message], *, whole: bool) -> Example:
    """A conversation as the template writes it, and which tokens a model should learn.

    `whole` says that the text is code: the user's part is learnt too, and nothing is said to
    end. Otherwise only answers are learnt, with the marker that ends them.
    """
    backend = tokenizer.backend_tokenizer
    bos, start, eos = (tokenizer.convert_tokens_to_ids(token) for token in (BOS, START, EOS))
    newline = backend.encode("\n").ids
    ids, learnt = [bos], [False]

    def add(new: list[int], learn: bool) -> None:
        ids.extend(new)
        learnt.extend([learn] * len(new))

    for message in messages:
        answer = message["role"] == "assistant"
        add([start, *backend.encode(message["role"] + "\n").ids], False)
        add(backend.encode(message["content"]).ids, answer or (whole and message["role"] == "user"))
        if answer and whole:
            break
        add([eos], answer)
        add(newline, False)
    return ids[:CONTEXT], learnt[:CONTEXT]


def corpus_examples(tokenizer: PreTrainedTokenizerFast, seed: int) -> Iterator[Example]:
    """Endless examples of both classes, mixed by tokens."""
    sources = {traffic: training_conversations(traffic, seed) for traffic in TRAFFIC}
    shares = dict(zip(TRAFFIC, (SERVICE_SHARE, 1 - SERVICE_SHARE), strict=True))
    used = dict.fromkeys(TRAFFIC, 0)
    while True:
        traffic = min(TRAFFIC, key=lambda name: used[name] / shares[name])
        example = encode(tokenizer, next(sources[traffic]), whole=traffic == "python-code")
        used[traffic] += len(example[0])
        yield example


def batches(
    examples: Iterator[Example], pad: int, seed: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Padded batches (ids, learnt) of about 4096 tokens, each of examples of similar length."""
    rng = random.Random(seed)
    while pool := sorted(islice(examples, 160), key=lambda example: len(example[0])):
        groups: list[list[Example]] = [[]]
        for example in pool:
            if (len(groups[-1]) + 1) * len(example[0]) > BATCH_TOKENS:
                groups.append([])
            groups[-1].append(example)
        rng.shuffle(groups)
        for group in groups:
            width = max(len(ids) for ids, _ in group)
            yield (
                torch.tensor([ids + [pad] * (width - len(ids)) for ids, _ in group]),
                torch.tensor([learn + [False] * (width - len(learn)) for _, learn in group]),
            )


def loss_of(
    model: LlamaForCausalLM, ids: torch.Tensor, learnt: torch.Tensor, unlikelihood: float = 0.0
) -> torch.Tensor:
    """Mean cross-entropy of the learnt tokens, in nats; only their logits are computed.

    `unlikelihood` weighs the penalty on saying one of the last 48 tokens again where the text
    doesn't (Welleck et al., arXiv 1908.04319): small models loop without it.
    """
    hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
    wanted = learnt[:, 1:]
    right = ids[:, 1:][wanted]
    logits = model.lm_head(hidden[wanted]).log_softmax(-1)
    loss = torch.nn.functional.nll_loss(logits, right)
    if unlikelihood:
        padded = torch.nn.functional.pad(ids[:, :-1], (REPEAT_WINDOW - 1, 0))
        recent = padded.unfold(1, REPEAT_WINDOW, 1)[wanted].sort(-1).values
        counts = recent != right[:, None]
        counts[:, 1:] &= recent[:, 1:] != recent[:, :-1]
        repeated = logits.gather(1, recent).exp().clamp(max=1 - 1e-4)
        loss = loss - unlikelihood * ((1 - repeated).log() * counts).sum(-1).mean()
    return loss


def train(
    model: LlamaForCausalLM,
    data: Iterator[tuple[torch.Tensor, torch.Tensor]],
    minutes: float,
    unlikelihood: float,
    checkpoint: Path,
    say: Callable[[str], None],
) -> None:
    """Train in place for `minutes`, rates falling to zero; goes on from `checkpoint` if there."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim < 2 or "embed" in n]
    optimizers = [Muon(matrices, lr=0.02), torch.optim.AdamW(others, 3e-3, (0.9, 0.98))]
    rates = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    before, step = 0.0, 0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        for optimizer, values in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(values)
        before, step = state["seconds"], state["step"]
        data = islice(data, step, None)

    def save(seconds: float) -> None:
        state = {"model": model.state_dict(), "seconds": seconds, "step": step}
        torch.save(state | {"optimizers": [o.state_dict() for o in optimizers]}, checkpoint)

    model.train()
    began = shown = saved = time.monotonic()
    tokens, total, count = 0, 0.0, 0
    for ids, learnt in data:
        now = time.monotonic()
        seconds = before + now - began
        progress = seconds / (60 * minutes)
        if progress >= 1:
            break
        if now - saved > 120:
            save(seconds)
            saved = now
        for optimizer, rate in zip(optimizers, rates, strict=True):
            rate *= min(1.0, (step + 1) / 20, 1.5 * (1 - progress))
            optimizer.param_groups[0]["lr"] = rate
        loss = loss_of(model, ids, learnt, unlikelihood)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(others, 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        step, tokens, total, count = step + 1, tokens + ids.numel(), total + loss.item(), count + 1
        if time.monotonic() - shown > 10:
            shown = time.monotonic()
            pace = tokens / (shown - began)
            left = 60 * minutes - seconds
            say(f"step {step}  loss {total / count:.3f}  {pace:.0f} tokens/s  {left:.0f} s left")
            total, count = 0.0, 0
    save(60 * minutes)
    model.eval()


def greedy(
    model: LlamaForCausalLM, prompts: list[list[int]], eos: int, limit: int
) -> list[list[int]]:
    """The greedy continuations of prompts of one length, to `eos` (kept) or `limit` tokens."""
    cache = DynamicCache(config=model.config)
    answers: list[list[int]] = [[] for _ in prompts]
    running = list(range(len(prompts)))
    ids = torch.tensor(prompts)
    with torch.inference_mode():
        for _ in range(limit):
            logits = model(input_ids=ids, past_key_values=cache, logits_to_keep=1).logits[:, -1]
            chosen = logits.argmax(-1).tolist()
            for row, token in zip(running, chosen, strict=True):
                answers[row].append(token)
            going = [at for at, token in enumerate(chosen) if token != eos]
            if not going:
                break
            if len(going) < len(running):
                cache.batch_select_indices(torch.tensor(going))
                running = [running[at] for at in going]
            ids = torch.tensor([[chosen[at]] for at in going])
    return answers


def own_answers(
    target: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    minutes: float,
    seed: int,
    say: Callable[[str], None],
) -> list[tuple[list[int], int]]:
    """The target's greedy answers to service prompts: (prompt and answer ids, prompt length)."""
    found: list[tuple[list[int], int]] = []
    began = time.monotonic()
    opening = encode(tokenizer, [{"role": "assistant", "content": ""}], whole=True)[0][1:]
    waiting: dict[int, list[list[int]]] = {}
    for messages in training_conversations("customer-service", seed + 1):
        spent = time.monotonic() - began
        if spent > 60 * minutes:
            break
        ids = encode(tokenizer, messages[:2], whole=False)[0] + opening
        group = waiting.setdefault(len(ids), [])
        group.append(ids)
        if len(group) == 48:
            answers = greedy(target, group, tokenizer.eos_token_id, ANSWER_TOKENS)
            found += [(p + a, len(p)) for p, a in zip(group, answers, strict=True)]
            group.clear()
            say(f"{len(found)} answers, {60 * minutes - spent:.0f} s left")
    return found


def draft_examples(
    tokenizer: PreTrainedTokenizerFast, answers: list[tuple[list[int], int]], seed: int
) -> Iterator[Example]:
    """Endless examples for the draft: the target's service answers, and library code as it is.

    Code is left off-policy on purpose: there the draft is to agree about half of the time.
    """
    rng = random.Random(seed)
    code = training_conversations("python-code", seed + 2)
    service_tokens = code_tokens = 0
    while True:
        for ids, prompt in rng.sample(answers, len(answers)):
            yield ids, [False] * prompt + [True] * (len(ids) - prompt)
            service_tokens += len(ids)
            while code_tokens < service_tokens * (1 - SERVICE_SHARE) / SERVICE_SHARE:
                example = encode(tokenizer, next(code), whole=True)
                code_tokens += len(example[0])
                yield example


def store(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write a plain Hugging Face folder, weights in fp16, that loads anywhere offline."""
    half = LlamaForCausalLM(model.config)
    half.load_state_dict(model.state_dict())
    half.half().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    settings = ends | {"pad_token_id": tokenizer.pad_token_id, "do_sample": False}
    (folder / "generation_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    # The class under its name in transformers 4 and 5, and the template inside the one file.
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config |= {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE}
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "chat_template.jinja").unlink(missing_ok=True)


def main() -> None:
    """The command line: run every stage that is missing and write OUT/target and OUT/draft."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for models and work files")
    parser.add_argument("--minutes", type=float, default=37, help="for the target")
    parser.add_argument("--answer-minutes", type=float, default=5)
    parser.add_argument("--draft-minutes", type=float, default=10)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    out, seed = options.out, options.seed
    work = out / "work"
    work.mkdir(parents=True, exist_ok=True)

    def say(text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)

    if not (work / "tokenizer").exists():
        train_tokenizer(seed).save_pretrained(work / "tokenizer")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(work / "tokenizer")
    say(f"tokenizer: {len(tokenizer)} tokens")

    def stage(role: str, minutes: float, examples: Iterator[Example]) -> None:
        """Train and store `role`, unless it is there already."""
        if not (out / role / "model.safetensors").exists():
            model = build(role, tokenizer, seed)
            say(f"{role}: {model.num_parameters() / 1e6:.2f} M parameters, {minutes} minutes")
            data = batches(examples, tokenizer.pad_token_id, seed)
            train(model, data, minutes, UNLIKELIHOOD[role], work / f"{role}.pt", say)
            store(model, tokenizer, out / role)

    stage("target", options.minutes, corpus_examples(tokenizer, seed))
    answers = work / "answers.json"
    if not answers.exists():
        target = LlamaForCausalLM.from_pretrained(out / "target", dtype=torch.float32).eval()
        found = own_answers(target, tokenizer, options.answer_minutes, seed, say)
        answers.write_text(json.dumps(found))
    examples = draft_examples(tokenizer, json.loads(answers.read_text()), seed)
    stage("draft", options.draft_minutes, examples)
    say(f"done: {out / 'target'} and {out / 'draft'}")


if __name__ == "__main__":
    main()
