"""A local transformers model as a backend, in fp32. Only this and ``padded.py`` load torch here.

Knows tokenizers, key-value caches and how several sequences share one forward pass; deliberately
not requests, prices or HTTP.

Numbers depend a little on how they are computed: a sequence stepped alone, stepped beside others,
or read as one prompt gives logits that differ by about 1e-5 (fp32), which changes an argmax only at
near-ties. So up to ``ALONE`` sequences each get a forward pass of their own, which makes greedy
answers independent of who else is there; more share one padded pass, which is faster and differs by
that much. So do more than ``ALONE`` prompts whose scores are known up to a short end.
"""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from specroute.reference.backend import Backend, Entry, InvalidPrompt, Message, State, Top, Work
from specroute.reference.padded import cache_of, cut, left_padded
from specroute.reference.prefix_cache import PrefixCache
from specroute.reference.sampling import NEVER, Settings

ALONE = 4
"""Up to this many sequences are stepped one by one."""

SHORT_END = 64
"""Tokens of a scored prompt that may be read in a pass with others' ends."""

MEMORY = 512 * 2**20
"""Bytes of keys and values that may be kept for later requests."""

SCORED_TOP = 20
"""Alternatives remembered at each scored position: the most that a request may ask for."""


@dataclass(slots=True)
class _Scored:
    """A prompt's scores, kept so that the same prompt with a longer end needn't be read again."""

    own: Any
    """(n,) the logprob of each token after the first."""
    ids: Any
    values: Any
    """(n, top) the most likely ids at those positions, and their logprobs."""

    def entries(self, n: int) -> list[Entry]:
        """As a request gets them, with ``n`` alternatives."""
        pairs = zip(self.ids[:, :n].tolist(), self.values[:, :n].tolist(), strict=True)
        return list(zip(self.own.tolist(), [_ranked(i, v) for i, v in pairs], strict=True))


@dataclass(slots=True, eq=False)
class _ModelState(State):
    cache: Any = None
    """A ``DynamicCache`` of its own. Its tensors are replaced as it grows, never written to."""
    shared: _Shared | None = None
    """The padded cache that holds this sequence now, instead of ``cache``."""
    row: int = 0
    scored: _Scored | None = None

    def prefix(self, n: int) -> list[tuple[Any, Any]]:
        """The first ``n`` tokens' keys and values, (1, heads, n, width) a layer.

        No more than were computed, if ``n`` counts one that is yet to be.
        """
        if self.shared is not None:
            return self.shared.extract(self.row, n)
        return [(layer.keys[:, :, :n], layer.values[:, :, :n]) for layer in self.cache.layers]


@dataclass(slots=True, eq=False)
class _Shared:
    """Several sequences' caches in one, padded on the left to one length."""

    members: list[_ModelState]
    cache: Any
    pads: list[int]

    def extract(self, row: int, n: int) -> list[tuple[Any, Any]]:
        return cut(self.cache, row, self.pads[row], self.pads[row] + n)


class _Row:
    """One position's distribution, as a tensor of raw logits."""

    __slots__ = ("_logits", "_logs")

    def __init__(self, logits: Any) -> None:
        self._logits, self._logs = logits, None

    @property
    def _logprobs(self) -> Any:
        if self._logs is None:
            self._logs = torch.log_softmax(self._logits, -1)
        return self._logs

    def greedy(self, bias: dict[int, float]) -> int:
        """The argmax after ``bias``; ties go to the lowest id."""
        return int(_biased(self._logits, bias).argmax())

    def draw(self, settings: Settings, bias: dict[int, float], u: float) -> int:
        """The id at quantile ``u``, in float64, most likely ids first."""
        logits = _biased(self._logits, bias).double() / settings.temperature
        ranked, ids = logits.sort(descending=True, stable=True)
        if 0 < settings.top_k < len(ranked):
            ranked = ranked[: int((ranked >= ranked[settings.top_k - 1]).sum())]
        cdf = torch.softmax(ranked, -1).cumsum(-1)
        if settings.top_p < 1:
            cdf = cdf[: int((cdf < settings.top_p).sum()) + 1]
        at = int(torch.searchsorted(cdf, u * float(cdf[-1]), right=True))
        return int(ids[min(at, len(cdf) - 1)])

    def logprob(self, token: int) -> float:
        """Natural log of the raw probability."""
        return float(self._logprobs[token])

    def top(self, n: int) -> Top:
        """The ``n`` most likely ids."""
        values, ids = self._logprobs.topk(min(n, len(self._logprobs)))
        return _ranked(ids.tolist(), values.tolist())

    def scaled(self, temperature: float) -> _Row:
        """The same after ``temperature``."""
        return _Row(self._logits / temperature)


def _biased(logits: Any, bias: dict[int, float]) -> Any:
    if bias:
        logits = logits.clone()
        logits[list(bias)] += torch.tensor(list(bias.values()), dtype=logits.dtype)
    return logits


def _ranked(ids: list[int], values: list[float]) -> Top:
    return sorted(zip(ids, values, strict=True), key=lambda pair: (-pair[1], pair[0]))


class Model(Backend):
    """A causal language model and its tokenizer, from a folder. Safetensors only."""

    inline = False

    def __init__(self, model: Any, tokenizer: Any, name: str, threads: int = 1) -> None:
        """Take a loaded ``model`` (fp32, any device) and ``tokenizer``; torch gets ``threads``."""
        self.name = name
        self._model, self._tokenizer = model.eval(), tokenizer
        config = model.config.get_text_config()
        self.max_len: int = getattr(config, "max_position_embeddings", 2048)
        self.size: int = config.vocab_size
        ends = {tokenizer.eos_token_id}
        for source in (model.generation_config, config):
            given = getattr(source, "eos_token_id", None)
            ends.update(given if isinstance(given, list) else [given])
        self.eos = frozenset(int(i) for i in ends if i is not None)
        self._special = frozenset(tokenizer.all_special_ids) | self.eos
        self._pieces = _pieces(tokenizer, self.size)
        self._threads, self._thread = threads, 0
        self._shared: _Shared | None = None
        heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
        width = (
            getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        )
        self.memory = MEMORY // (config.num_hidden_layers * heads * width * 2 * 4)
        self._prompts = PrefixCache(tokens=self.memory)
        # transformers renamed the argument in 5.x and warns about the old name
        renamed = "cache" in inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if renamed else "past_key_values"

    @classmethod
    def load(cls, folder: Path, device: str = "cpu", threads: int = 1) -> Model:
        """Read ``folder``; ``OSError`` or ``ValueError`` where it holds no usable model."""
        bars = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()
        try:
            model = AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, local_files_only=True, use_safetensors=True
            )
        finally:
            if bars:
                logging.enable_progress_bar()
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        made = cls(model.to(device), tokenizer, folder.resolve().name, threads)
        with ThreadPoolExecutor(1) as other:  # a first pass takes longer; not a request's
            other.submit(made.run, [Work(made.new_state([0] * 8), 0)]).result()
        return made

    # -- tokens ----------------------------------------------------------------------------------

    def encode(self, text: str, special: bool) -> list[int]:
        """The tokenizer's ids; special tokens written in ``text`` are recognised."""
        return list(self._tokenizer.encode(text, add_special_tokens=special))

    def piece(self, token: int) -> bytes:
        """The token's bytes."""
        return self._pieces[token]

    def is_special(self, token: int) -> bool:
        """The tokenizer's special tokens and whatever ends an answer."""
        return token in self._special

    def render(
        self,
        messages: Sequence[Message],
        *,
        generate: bool,
        prefill: str | None,
        tools: list[Any] | None,
    ) -> str:
        """The model's own chat template."""
        if not self._tokenizer.chat_template:
            raise InvalidPrompt("this model has no chat template; use /v1/completions")
        try:
            text: str = self._tokenizer.apply_chat_template(
                list(messages),
                tokenize=False,
                add_generation_prompt=generate or prefill is not None,
                tools=tools,
            )
        except (
            Exception
        ) as error:  # a template is a program; whatever it raises is about the messages
            raise InvalidPrompt(f"the chat template refuses them: {error}") from error
        return text + (prefill or "")

    def tool_name(self, prompt: str) -> str | None:
        """A model's text is never taken for a call."""
        return None

    # -- distributions ---------------------------------------------------------------------------

    def new_state(self, ids: list[int]) -> State:
        """A state that has computed nothing yet."""
        return _ModelState(ids)

    def run(self, works: Sequence[Work]) -> None:
        """New sequences one by one, in order; running ones, and short ends of scored prompts, alone
        or together."""
        if self._thread != (here := threading.get_ident()):
            # torch counts threads for each calling thread; one is best for a tiny model
            torch.set_num_threads(self._threads)
            self._thread = here
        decoding = [w for w in works if _continues(w)]
        together = len(decoding) > ALONE
        with torch.inference_mode():
            self._release([w.state for w in decoding] if together else [])
            ends = self._short_ends(works)
            if len(ends) > ALONE:
                # Before all others, which may go on from one of them.
                self._ends(ends)
            else:
                ends = []
            read = {id(work) for work, _, _ in ends}
            for work in works:
                if not (id(work) in read or (together and _continues(work))):
                    self._one(work)
            if together:
                self._many(decoding)

    def _short_ends(self, works: Sequence[Work]) -> list[tuple[Work, _ModelState, int]]:
        """The scored prompts of which all but a short end is known: from whom, and how much."""
        found = []
        for work in works:
            if work.score is not None:
                source, start = self._scored_before(work.state)
                if start and len(work.state.ids) - start <= SHORT_END:
                    found.append((work, source, start))
        return found

    def _ends(self, ends: Sequence[tuple[Work, _ModelState, int]]) -> None:
        """Read the ends of several scored prompts in one pass: what is known of each is padded on
        the left, its end on the right."""
        device = self._model.device
        news = [work.state.ids[start:] for work, _, start in ends]
        counts = [start for _, _, start in ends]
        before, after = max(counts), max(map(len, news))
        past, pads = left_padded([source.prefix(start) for _, source, start in ends], counts)
        columns = torch.arange(before + after, device=device)[None]
        first = torch.tensor(pads, device=device)[:, None]
        last = torch.tensor([before + len(new) for new in news], device=device)[:, None]
        starts = torch.tensor(counts, device=device)[:, None]
        output = self._model(
            input_ids=torch.tensor([[*new, *[0] * (after - len(new))] for new in news]).to(device),
            attention_mask=((columns >= first) & (columns < last)).long(),
            position_ids=(starts + torch.arange(after, device=device)).clamp_max(self.max_len - 1),
            use_cache=True,
            **{self._cache_argument: past},
        )
        logits = output.logits.float().cpu()
        for row, ((work, source, start), new) in enumerate(zip(ends, news, strict=True)):
            state = work.state
            assert isinstance(state, _ModelState)
            state.cache = cache_of(cut(past, row, pads[row], before + len(new)))
            state.shared = None
            self._read(work, logits[row, : len(new)], source, start)

    def _release(self, staying: Sequence[State]) -> None:
        """Give sequences that have left the padded cache a copy, so that it can be freed."""
        if self._shared is None or self._shared.members == staying:
            return
        for state in self._shared.members:
            if state.shared is self._shared:
                state.cache, state.shared = cache_of(state.prefix(state.computed)), None
        self._shared = None

    def _one(self, work: Work) -> None:
        state, source, start = work.state, work.parent or work.state, work.start
        if work.score is not None:
            source, start = self._scored_before(state)
        assert isinstance(state, _ModelState)
        assert isinstance(source, _ModelState)
        cache = source.cache
        if source is not state or cache is None:
            cache = cache_of(source.prefix(start) if start else [])
        output = self._model(
            input_ids=torch.tensor([state.ids[start:]], device=self._model.device),
            use_cache=True,
            logits_to_keep=1 if work.score is None else 0,
            **{self._cache_argument: cache},
        )
        logits = output.logits[0].float().cpu()
        state.cache, state.shared = cache, None
        self._read(work, logits, source, start)

    def _read(self, work: Work, logits: Any, source: _ModelState, start: int) -> None:
        """What follows the prompt, and its scores where they are asked for: ``logits`` are those of
        the ids from ``start`` on, ``source`` has the scores before."""
        state = work.state
        assert isinstance(state, _ModelState)
        work.scores = _Row(logits[-1])
        if work.score is not None and len(state.ids) > 1:
            known = source.scored if source is not state else None
            state.scored = _score(logits[:-1], state.ids[start + 1 :], known, start)
            work.scored = state.scored.entries(work.score)
            self._prompts.add(state, source)

    def _scored_before(self, state: State) -> tuple[_ModelState, int]:
        """The scored prompt that shares most with this one, and how much need not be read again.

        It saves computing, not money: the bill and the pace count the whole prompt.
        """
        source, shared = self._prompts.find(state.ids)
        if not (isinstance(source, _ModelState) and source.scored is not None):
            assert isinstance(state, _ModelState)
            return state, 0
        # the last shared token is read again: what follows it was scored for another token
        return source, max(min(shared, len(source.scored.own) + 1) - 1, 0)

    def _many(self, works: Sequence[Work]) -> None:
        states = [w.state for w in works if isinstance(w.state, _ModelState)]
        shared = self._shared = self._shared or _join(states)
        device = self._model.device
        places = torch.tensor([[len(s.ids) - 1] for s in states], device=device)
        pads = torch.tensor(shared.pads, device=device)[:, None]
        width = shared.cache.get_seq_length() + 1
        output = self._model(
            input_ids=torch.tensor([[s.ids[-1]] for s in states], device=device),
            attention_mask=(torch.arange(width, device=device)[None] >= pads).long(),
            position_ids=places,
            use_cache=True,
            **{self._cache_argument: shared.cache},
        )
        logits = output.logits[:, -1].float().cpu()
        for row, (work, state) in enumerate(zip(works, states, strict=True)):
            state.cache, state.shared, state.row = None, shared, row
            work.scores = _Row(logits[row])


def _continues(work: Work) -> bool:
    return work.parent is None and work.start == len(work.state.ids) - 1 and work.start > 0


def _join(states: Sequence[_ModelState]) -> _Shared:
    counts = [len(s.ids) - 1 for s in states]
    cache, pads = left_padded([s.prefix(n) for s, n in zip(states, counts, strict=True)], counts)
    return _Shared(list(states), cache, pads)


def _score(logits: Any, tokens: Sequence[int], known: _Scored | None, start: int) -> _Scored:
    """Scores of ``tokens``, after the first ``start`` known ones."""
    logprobs = torch.log_softmax(logits, -1)
    own = logprobs.gather(1, torch.tensor(tokens)[:, None])[:, 0].clamp_min(NEVER)
    values, ids = logprobs.topk(min(SCORED_TOP, logprobs.shape[-1]))
    if known is not None and start:
        own = torch.cat([known.own[:start], own])
        ids = torch.cat([known.ids[:start], ids])
        values = torch.cat([known.values[:start], values])
    return _Scored(own, ids, values)


def _pieces(tokenizer: Any, size: int) -> list[bytes]:
    """Every token's bytes, for byte-level and for metaspace tokenizers (with byte fallback)."""
    special = set(tokenizer.all_special_ids) | {
        i for i, t in tokenizer.added_tokens_decoder.items() if t.special
    }
    names = tokenizer.convert_ids_to_tokens(list(range(min(size, len(tokenizer)))))
    alphabet = _byte_alphabet()
    decoder = str(tokenizer.backend_tokenizer.decoder)
    byte_level = "ByteLevel" in decoder
    pieces = []
    for i, name in enumerate(names):
        if name is None:
            pieces.append(b"")
        elif i in special or i in tokenizer.added_tokens_decoder:
            pieces.append(name.encode())
        elif byte_level:
            pieces.append(bytes(alphabet[c] for c in name))
        elif match := re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", name):
            pieces.append(bytes([int(match[1], 16)]))
        else:
            pieces.append(name.replace("\u2581", " ").encode())
    return pieces + [b""] * (size - len(pieces))


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for bytes, character to byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(others)}
