"""A local transformers model as a backend, in fp32. The only file here that loads torch.

Knows tokenizers, key-value caches and how several sequences share one forward pass; deliberately
not requests, prices or HTTP.

Numbers depend a little on how they are computed: a sequence stepped alone, stepped beside others,
or read as one prompt gives logits that differ by about 1e-5 (fp32), which changes an argmax only at
near-ties. So up to ``ALONE`` sequences each get a forward pass of their own, which makes greedy
answers independent of who else is there; more share one padded pass, which is faster and differs by
that much.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from specroute.reference.backend import Backend, Entry, InvalidPrompt, Message, State, Top, Work
from specroute.reference.sampling import NEVER, Settings

ALONE = 4
"""Up to this many sequences are stepped one by one."""

Layers = list[tuple[Any, Any]]
"""Keys and values of each layer, shaped (1, heads, tokens, width). Never written to in place."""


@dataclass(slots=True)
class _ModelState(State):
    layers: Layers | None = None
    shared: _Shared | None = None
    """The padded cache that holds this sequence now, instead of ``layers``."""
    row: int = 0

    def prefix(self, n: int) -> Layers:
        """The first ``n`` computed tokens' keys and values."""
        if self.shared is not None:
            return self.shared.extract(self.row, n)
        assert self.layers is not None
        return [(k[:, :, :n], v[:, :, :n]) for k, v in self.layers]


@dataclass(slots=True)
class _Shared:
    """Several sequences' caches, padded on the left to one length."""

    members: list[_ModelState]
    layers: Layers
    pads: list[int]
    mask: Any = field(default=None)

    def extract(self, row: int, n: int) -> Layers:
        start = self.pads[row]
        return [
            (k[row : row + 1, :, start : start + n], v[row : row + 1, :, start : start + n])
            for k, v in self.layers
        ]


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
        return _tops(self._logprobs[None], n)[0]

    def scaled(self, temperature: float) -> _Row:
        """The same after ``temperature``."""
        return _Row(self._logits / temperature)


def _biased(logits: Any, bias: dict[int, float]) -> Any:
    if bias:
        logits = logits.clone()
        logits[list(bias)] += torch.tensor(list(bias.values()), dtype=logits.dtype)
    return logits


def _tops(logprobs: Any, n: int) -> list[Top]:
    if n == 0:
        return [[] for _ in range(len(logprobs))]
    values, ids = logprobs.topk(min(n, logprobs.shape[-1]))
    return [
        sorted(zip(i, v, strict=True), key=lambda pair: (-pair[1], pair[0]))
        for i, v in zip(ids.tolist(), values.tolist(), strict=True)
    ]


class Model(Backend):
    """A causal language model and its tokenizer, from a folder. Safetensors only."""

    inline = False

    def __init__(self, model: Any, tokenizer: Any, name: str) -> None:
        """Take a loaded ``model`` (fp32, any device) and ``tokenizer``."""
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
        # transformers renamed the argument in 5.x and warns about the old name
        renamed = "cache" in inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if renamed else "past_key_values"

    @classmethod
    def load(cls, folder: Path, device: str = "cpu") -> Model:
        """Read ``folder``; ``OSError`` or ``ValueError`` where it holds no usable model."""
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, use_safetensors=True
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        return cls(model.to(device), tokenizer, folder.resolve().name)

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
        """New sequences one by one, in order; running ones alone or together."""
        decoding = [w for w in works if _continues(w)]
        together = len(decoding) > ALONE
        with torch.inference_mode():
            for work in works:
                if not (together and _continues(work)):
                    self._one(work)
            if together:
                self._many(decoding)

    def _one(self, work: Work) -> None:
        state = work.state
        assert isinstance(state, _ModelState)
        source = work.parent if work.parent is not None else state
        cache = DynamicCache()
        if work.start:
            assert isinstance(source, _ModelState)
            for i, (keys, values) in enumerate(source.prefix(work.start)):
                cache.update(keys, values, i)
        ids = torch.tensor([state.ids[work.start :]], device=self._model.device)
        logits = (
            self._model(
                input_ids=ids,
                **{self._cache_argument: cache},
                use_cache=True,
                logits_to_keep=1 if work.score is None else 0,
            )
            .logits[0]
            .float()
            .cpu()
        )
        state.layers, state.shared = [(layer.keys, layer.values) for layer in cache.layers], None
        work.scores = _Row(logits[-1])
        if work.score is not None and len(state.ids) > 1:
            work.scored = _entries(logits[:-1], state.ids[1:], work.score)

    def _many(self, works: Sequence[Work]) -> None:
        states = [w.state for w in works if isinstance(w.state, _ModelState)]
        shared = states[0].shared
        if shared is None or shared.members != states:
            shared = _join(states)
        device = self._model.device
        cache = DynamicCache()
        for i, (keys, values) in enumerate(shared.layers):
            cache.update(keys, values, i)
        tokens = torch.tensor([[s.ids[-1]] for s in states], device=device)
        places = torch.tensor([[len(s.ids) - 1] for s in states], device=device)
        width = shared.layers[0][0].shape[2] + 1
        pads = torch.tensor(shared.pads, device=device)[:, None]
        mask = (torch.arange(width, device=device)[None] >= pads).long()
        logits = (
            self._model(
                input_ids=tokens,
                attention_mask=mask,
                position_ids=places,
                **{self._cache_argument: cache},
                use_cache=True,
            )
            .logits[:, -1]
            .float()
            .cpu()
        )
        shared.layers = [(layer.keys, layer.values) for layer in cache.layers]
        for row, (work, state) in enumerate(zip(works, states, strict=True)):
            state.layers, state.shared, state.row = None, shared, row
            work.scores = _Row(logits[row])


def _continues(work: Work) -> bool:
    return work.parent is None and work.start == len(work.state.ids) - 1 and work.start > 0


def _join(states: Sequence[_ModelState]) -> _Shared:
    counts = [len(s.ids) - 1 for s in states]
    width = max(counts)
    parts = [s.prefix(n) for s, n in zip(states, counts, strict=True)]
    layers = []
    for layer in range(len(parts[0])):
        pair = []
        for side in (0, 1):
            first = parts[0][layer][side]
            out = first.new_zeros((len(states), first.shape[1], width, first.shape[3]))
            for row, (part, n) in enumerate(zip(parts, counts, strict=True)):
                out[row, :, width - n :] = part[layer][side][0]
            pair.append(out)
        layers.append((pair[0], pair[1]))
    return _Shared(list(states), layers, [width - n for n in counts])


def _entries(logits: Any, tokens: Sequence[int], n: int) -> list[Entry]:
    logprobs = torch.log_softmax(logits, -1)
    own = logprobs.gather(1, torch.tensor(tokens)[:, None])[:, 0].clamp_min(NEVER).tolist()
    return list(zip(own, _tops(logprobs, n), strict=True))


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
