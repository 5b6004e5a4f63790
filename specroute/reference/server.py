"""The endpoints: what each of them reads, has computed and sends, and who pays what.

Knows which endpoints there are, and those that generate; those beside them are in ``aside``.
Deliberately not logits, batching, layouts or ASGI's messages. No web framework, no middleware, and
no task or timer for each token.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any

from specroute.reference.access_log import AccessLog
from specroute.reference.answer import (
    DONE,
    ChatShape,
    CompletionShape,
    Names,
    Shape,
    dumps,
    usage,
)
from specroute.reference.aside import Aside
from specroute.reference.backend import Backend
from specroute.reference.batching import Choice, Engine, Item
from specroute.reference.call import (
    Call,
    ClientGone,
    Endpoint,
    Handler,
    Receive,
    Scope,
    Send,
)
from specroute.reference.errors import Refusal, invalid
from specroute.reference.options import ENDPOINTS, Options
from specroute.reference.prediction import Prediction
from specroute.reference.request import (
    Generate,
    read_chat,
    read_completion,
)
from specroute.reference.scoring import (
    GenerateShape,
    PromptLogprobsShape,
    read_generate,
    read_prompt_logprobs,
)
from specroute.reference.served import Served
from specroute.reference.text import TextStream

UNORDERED = frozenset({"answers_unordered", "answers_misnumbered"})
_SSE = (b"content-type", b"text/event-stream; charset=utf-8")


class Server:
    """The reference server as an ASGI application (``.app``), over one backend."""

    def __init__(self, backend: Backend, options: Options, log: AccessLog | None = None) -> None:
        self.backend, self.options = backend, options
        self.log = log or AccessLog()
        self.engine = Engine(
            backend, options.pace, max_batch=options.max_batch, quirks=options.quirks
        )
        self._most_prompts = 1 if "first_prompt_only" in options.quirks else None
        self.served = Served(backend, options)
        self._rng = Random(options.seed)
        aside = Aside(self.served, int(time.time()))
        posts: dict[str, Handler] = {
            "completions": self._completions,
            "chat": self._chat,
            "tokenize": aside.tokenize,
            "detokenize": aside.detokenize,
            "apply_template": aside.apply_template,
            "generate": self._native,
            "embeddings": aside.embeddings,
        }
        gets: dict[str, Handler] = {"models": aside.models}

        def endpoint(handler: Handler, method: str | None, check: bool = True) -> Endpoint:
            return Endpoint(
                handler,
                method,
                self.log,
                rtt=options.pace.rtt,
                check=self._check_key if check else None,
            )

        self._endpoints = {
            ENDPOINTS[name]: endpoint(handler, method)
            for method, handlers in (("POST", posts), ("GET", gets))
            for name, handler in handlers.items()
            if name not in options.disable
        }
        self._endpoints["/health"] = endpoint(aside.health, "GET", check=False)
        self._one = endpoint(aside.one_model, "GET") if "models" not in options.disable else None
        self._else = endpoint(self._nowhere, None)

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        path = scope["path"]
        found = self._endpoints.get(path)
        if found is None and self._one is not None and path.startswith(ENDPOINTS["models"] + "/"):
            scope = {**scope, "path_params": {"name": path[len(ENDPOINTS["models"]) + 1 :]}}
            found = self._one
        await (found or self._else)(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        async with self.running():
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Compute answers for as long as the block lasts; ASGI's lifespan does the same."""
        task = asyncio.ensure_future(self.engine.run())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            self.log.close()

    # -- what every endpoint needs ---------------------------------------------------------------

    def _check_key(self, scope: Scope) -> None:
        key = self.options.api_key
        if key is not None:
            given = dict(scope["headers"]).get(b"authorization", b"")
            if given != b"Bearer " + key.encode():
                raise Refusal(
                    401,
                    "Incorrect API key provided; send the server's as 'Authorization: Bearer …'",
                    code="invalid_api_key",
                )

    async def _nowhere(self, call: Call) -> None:
        raise Refusal(404, f"no such endpoint: {call.scope['method']} {call.scope['path']}")

    # -- generating ------------------------------------------------------------------------------

    async def _completions(self, call: Call) -> None:
        body = await call.body()
        asked = read_completion(body, self.options)
        generate = asked.generate
        scored = read_prompt_logprobs(body, self.options)
        self._begin(call, generate)
        prompts, texts = [], []
        for prompt in asked.prompts[: self._most_prompts]:
            if isinstance(prompt, str):
                ids, text = self.backend.encode(prompt, asked.special), prompt
                if not ids:
                    raise invalid("prompt", prompt, "at least one token")
            else:
                self.served.check_ids(prompt, "prompt")
                ids, stream = prompt, TextStream()
                text = "".join(stream.push(self.backend.piece(i))[1] for i in ids) + stream.finish()
            prompts.append(ids)
            texts.append(text)
        call.record.echo = asked.echo
        score = generate.top if asked.echo else None
        if scored is not None:
            score = max(score or 0, scored)
        choices = self._choices(call, generate, prompts, score)
        echoed = {}
        if asked.echo:
            firsts = choices[:: generate.n]
            echoed = {
                c.index: (texts[c.index // generate.n], firsts[c.index // generate.n])
                for c in choices
            }
        shape: Shape = CompletionShape(
            self.backend,
            Names(self.backend, generate.id_names),
            id=f"cmpl-{call.id}",
            created=int(call.record.time),
            model=generate.model,
            echoed=echoed,
            logprobs=generate.top is not None,
            shows_ids=generate.shows_ids,
        )
        if scored is not None:
            shape = PromptLogprobsShape(shape, self.backend, choices, generate.n)
        await self._answer(call, generate, choices, shape)

    async def _native(self, call: Call) -> None:
        asked = read_generate(await call.body(), self.served.names[0], self.options)
        generate = asked.completion.generate
        self._begin(call, generate)
        prompts = []
        for prompt, start in zip(asked.completion.prompts, asked.starts, strict=True):
            ids = self.backend.encode(prompt, True) if isinstance(prompt, str) else prompt
            self.served.check_ids(ids, "input_ids")
            if start is not None and start >= len(ids):
                raise invalid("logprob_start_len", start, f"less than {len(ids)}")
            prompts.append(ids)
        prompts = prompts[: self._most_prompts]
        score = generate.top if asked.scores else None
        choices = self._choices(call, generate, prompts, score)
        for choice, start in zip(choices, asked.starts, strict=False):
            choice.score_from = start or 0
        shape = GenerateShape(
            call.id, choices, asked.starts, generate.top is not None, listed=asked.listed
        )
        await self._answer(call, generate, choices, shape)

    async def _chat(self, call: Call) -> None:
        body = await call.body()
        generate, chat = read_chat(body, self.options)
        scored = read_prompt_logprobs(body, self.options)
        self._begin(call, generate)
        prompt = self.served.render(chat)
        ids = self.backend.encode(prompt, False)
        choices = self._choices(call, generate, [ids], scored)
        if chat.prediction is not None:
            predicted = Prediction(self.backend.encode(chat.prediction, False))
            choices[0].prediction = predicted
        shape: Shape = ChatShape(
            Names(self.backend, generate.id_names),
            id=f"chatcmpl-{call.id}",
            created=int(call.record.time),
            model=generate.model,
            logprobs=generate.top is not None,
            shows_ids=generate.shows_ids,
            repeated=(chat.prefill or "") if self.options.prefill_repeats else "",
            tool=self.backend.tool_name(prompt) if chat.tools else None,
        )
        if scored is not None:
            shape = PromptLogprobsShape(shape, self.backend, choices, generate.n)
        await self._answer(call, generate, choices, shape)

    def _begin(self, call: Call, generate: Generate) -> None:
        call.record.model, call.record.stream = generate.model, generate.stream
        self.served.check_model(generate.model)
        for name, ids in (("logit_bias", generate.bias), ("stop_token_ids", generate.stop_ids)):
            self.served.check_ids(list(ids), name)

    def _choices(
        self, call: Call, generate: Generate, prompts: list[list[int]], score: int | None
    ) -> list[Choice]:
        record, choices = call.record, list[Choice]()
        record.prompts = len(prompts)
        seed = generate.seed if generate.seed is not None else self._rng.getrandbits(64)
        ends = generate.stop_ids if generate.ignore_eos else generate.stop_ids | self.backend.eos
        for p, ids in enumerate(prompts):
            room = self.backend.max_len - len(ids)
            wanted = generate.max_tokens
            if room < (1 if wanted is None else wanted):
                raise Refusal(
                    400,
                    f"This model's maximum context length is {self.backend.max_len} tokens, but "
                    f"{len(ids)} are in the prompt and {wanted or 'some'} are to follow; send less",
                    param="max_tokens" if room > 0 else None,
                    code="context_length_exceeded",
                )
            record.prompt_tokens += len(ids)
            for n in range(generate.n):
                rng = None
                if not generate.settings.greedy:
                    # a caller's seed means the same for every prompt, a server's own does not
                    rng = Random(f"{seed}:{n}" if generate.seed is not None else f"{seed}:{p}:{n}")
                choices.append(
                    Choice(
                        index=len(choices),
                        outbox=call.outbox,
                        state=self.backend.new_state(list(ids)),
                        prompt_tokens=len(ids),
                        max_tokens=room if wanted is None else wanted,
                        ends=ends,
                        settings=generate.settings,
                        text=TextStream(generate.stop),
                        bias=generate.bias,
                        rng=rng,
                        top=generate.top,
                        score=score if n == 0 else None,
                        bills=n == 0,
                    )
                )
        return choices

    async def _answer(
        self, call: Call, generate: Generate, choices: list[Choice], shape: Shape
    ) -> None:
        pace, half = self.options.pace, self.options.pace.rtt / 2
        call.watch()
        try:
            due = call.arrived + half + pace.ttft
            await call.outbox.until(due)
            if call.outbox.closed:
                raise ClientGone
            self.engine.submit(choices, due)
            if generate.stream:
                await self._stream(call, generate, choices, shape, half)
            else:
                await self._whole(call, choices, shape, half)
        finally:
            self.engine.cancel(choices)
            if call.record.status == 0:  # left by exception: nothing was logged yet
                self._settle(call, choices)

    async def _items(self, call: Call, half: float) -> list[Item]:
        outbox = call.outbox
        await outbox.wait()
        if half and outbox.items:
            await outbox.until(outbox.items[0].due + half)
        if outbox.closed:
            raise ClientGone
        now = asyncio.get_running_loop().time() if half else 0.0
        items = []
        while outbox.items and (not half or outbox.items[0].due + half <= now):
            items.append(outbox.items.popleft())
        return items

    async def _whole(self, call: Call, choices: list[Choice], shape: Shape, half: float) -> None:
        by_choice: list[list[Item]] = [[] for _ in choices]
        left = len(choices)
        while left:
            for item in await self._items(call, half):
                if item.finish == "error":
                    raise Refusal(500, f"the model failed: {item.own}")
                by_choice[item.choice.index].append(item)
                left -= item.finish is not None
        self._settle(call, choices)
        whole = shape.whole(by_choice, self._usage(call))
        if len(choices) > 1 and self.options.quirks & UNORDERED:
            whole = self._disorder(whole)
        await call.reply(200, whole)

    def _disorder(self, whole: bytes) -> bytes:
        """The answers of a list in another order: a quirk."""
        answer = json.loads(whole)
        listed = answer if isinstance(answer, list) else answer["choices"]
        listed.reverse()
        if "answers_misnumbered" in self.options.quirks and isinstance(answer, dict):
            for i, choice in enumerate(listed):
                choice["index"] = i
        return dumps(answer)

    async def _stream(
        self, call: Call, generate: Generate, choices: list[Choice], shape: Shape, half: float
    ) -> None:
        left, opened = len(choices), set[int]()
        while left:
            parts = []
            for item in await self._items(call, half):
                if item.finish == "error":
                    raise Refusal(500, f"the model failed: {item.own}")
                if item.choice.index not in opened:
                    opened.add(item.choice.index)
                    parts.append(shape.start(item.choice))
                parts.append(shape.chunk(item))
                left -= item.finish is not None
            if not call.started:
                await call.start(200, _SSE, (b"cache-control", b"no-cache"))
            if not left:
                self._settle(call, choices)
                if generate.include_usage:
                    parts.append(shape.usage(self._usage(call)))
                parts.append(DONE)
                call.log(200)
            await call.write(b"".join(parts), more=left > 0)

    def _settle(self, call: Call, choices: list[Choice]) -> None:
        record = call.record
        first = [c for c in choices if c.bills]
        record.cached_tokens = sum(c.cached for c in first)
        record.charged_prompt_tokens = sum(c.prompt_tokens - c.cached for c in first if c.admitted)
        record.completion_tokens = sum(c.generated for c in choices)
        predictions = [c.prediction for c in choices if c.prediction is not None]
        record.accepted_prediction_tokens = sum(p.accepted for p in predictions)
        record.rejected_prediction_tokens = sum(p.rejected for p in predictions)
        record.finish_reasons = [c.finish or "cancelled" for c in choices]
        record.overrun_s = max((c.overrun for c in choices), default=0.0)

    def _usage(self, call: Call) -> dict[str, Any]:
        record = call.record
        counts = (record.accepted_prediction_tokens, record.rejected_prediction_tokens)
        return usage(
            record.prompt_tokens,
            record.cached_tokens,
            record.completion_tokens,
            "cached_tokens" not in self.options.disable,
            counts if any(counts) else None,
        )
