"""Every scoring dialect reads its documented shape to one view, and refuses what can't be one."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from specroute.profiles import SCORE_DIALECTS, Capabilities, load_profile, profile_names
from specroute.target.dialects import DIALECTS, Ask, dialects_of
from specroute.target.view import BadEvidence, Position, Sample, View
from tests.target import shapes
from tests.target.shapes import BANG, CONTEXT, DOT, EOS, HALF, NOT, PARIS, ROME, WORDS, A

N = 2
Edit = Callable[[dict[str, Any]], object]
CAPABLE = Capabilities(
    completions=True,
    id_prompts=True,
    list_prompts=True,
    token_ids_param="return_tokens_as_token_ids",
    prefill="continue_final_message",
)


def ask(form: str, draft: tuple[int, ...] = (PARIS, DOT), **changes: Any) -> Ask:
    """The question about ``draft`` after "The capital is"."""
    context: dict[str, Any] = {
        "ids": {"ids": CONTEXT},
        "text": {"text": shapes.TEXT},
        "chat": {"messages": shapes.MESSAGES, "committed": shapes.TEXT},
    }[form]
    said = draft if form == "ids" else shapes.text_of(draft)
    base: dict[str, Any] = {"logprobs": N, "capabilities": CAPABLE, **context}
    return Ask("m", said, **{**base, **changes})


@dataclass(frozen=True)
class Case:
    """A dialect in one form, and its honest answer to a draft."""

    dialect: str
    form: str
    answer: Callable[..., dict[str, Any]]
    options: Mapping[str, Any] = field(default_factory=dict)
    before: int = 3

    def ask(self, draft: tuple[int, ...] = (PARIS, DOT), **changes: Any) -> Ask:
        if self.dialect == "fanout" and self.form == "text":
            changes = {"pieces": tuple(WORDS[token] for token in draft), **changes}
        return ask(self.form, draft, **changes)

    def honest(self, draft: tuple[int, ...] = (PARIS, DOT), n: int = N) -> dict[str, Any]:
        return self.answer(draft, n, **self.options)

    def view(self, data: Mapping[str, Any], asked: Ask | None = None) -> View:
        return DIALECTS[self.dialect].view(data, asked or self.ask(), 0.25)


CASES = {
    "echo by ids": Case("echo", "ids", shapes.echo),
    "echo by text": Case("echo", "text", shapes.echo, {"by_ids": False}),
    "echo by text after a BOS": Case(
        "echo", "text", shapes.echo, {"by_ids": False, "bos": True}, 4
    ),
    "echo_last by ids": Case("echo_last", "ids", shapes.echo_last),
    "echo_last by text": Case("echo_last", "text", shapes.echo_last, {"more": 2}),
    "prompt_logprobs": Case("prompt_logprobs", "ids", shapes.prompt_logprobs),
    "prompt_logprobs in chat": Case("prompt_logprobs", "chat", shapes.chat_prompt_logprobs, {}, 8),
    "the same without ids": Case(
        "prompt_logprobs", "chat", shapes.chat_prompt_logprobs, {"with_ids": False}, 8
    ),
    "generate": Case("generate", "ids", shapes.generate),
    "together": Case("together", "text", shapes.together, {}, 4),
    "together with alternatives": Case("together", "text", shapes.together, {"tops": True}, 4),
    "mistral": Case("mistral", "chat", shapes.mistral, {}, 7),
    "fanout by ids": Case("fanout", "ids", shapes.fanout),
    "fanout by text": Case("fanout", "text", shapes.fanout, {}, 0),
    "native_fanout": Case("native_fanout", "ids", shapes.native_fanout),
}
ECHOING = [name for name in CASES if "fanout" not in name]


def expected(case: Case, draft: tuple[int, ...], n: int = N) -> tuple[Position, ...]:
    """What a truthful answer says of ``draft``."""
    by_ids = case.form == "ids"
    bare = case.dialect == "together" and not case.options.get("tops")
    found = []
    for place, token in enumerate(draft):
        top = tuple((t if by_ids else WORDS[t], lp) for t, lp in shapes.top(place, n))
        key = token if by_ids else WORDS[token]
        found.append(Position(key, shapes.logprob(place, token), () if bare else top))
    return tuple(found)


@pytest.mark.parametrize("name", ECHOING)
def test_an_honest_answer_is_read(name: str) -> None:
    """A position per drafted token, the generated token, the counts."""
    case = CASES[name]
    view = case.view(case.honest())
    assert view.positions == expected(case, (PARIS, DOT))
    assert view.bonus == ((A,) if case.form == "ids" else (" a",))
    assert (view.finish, view.seconds, view.before) == ("length", 0.25, case.before)
    assert view.usage.completion_tokens == 1
    assert view.samples == ()


@pytest.mark.parametrize("drafted", [PARIS, ROME, A, NOT, BANG, DOT])
@pytest.mark.parametrize("name", [n for n in ECHOING if n != "together"])
def test_what_is_visible_does_not_depend_on_the_draft(name: str, drafted: int) -> None:
    """Most probable, within N, tied, outside N, impossible (clamped): the same N are seen."""
    case = CASES[name]
    for n in (1, 2, 4):
        asked = case.ask((drafted,), logprobs=n)
        (position,) = case.view(case.honest((drafted,), n), asked).positions
        assert position == expected(case, (drafted,), n)[0]
        assert position.argmax in (PARIS, " Paris")


@pytest.mark.parametrize("name", ECHOING)
def test_nothing_drafted_is_one_token_of_the_targets_own(name: str) -> None:
    """No echo is asked for, and none is looked for."""
    case = CASES[name]
    asked = case.ask(())
    payload = DIALECTS[case.dialect].request(asked).payload
    assert payload.keys().isdisjoint({"echo", "echo_last", "top_prompt_logprobs"})
    data = case.honest(())
    if case.dialect == "echo":
        data["choices"][0]["text"] = " a"
        shown = data["choices"][0]["logprobs"]
        data["choices"][0]["logprobs"] = {key: values[-1:] for key, values in shown.items()}
    elif case.options.get("more"):
        data = shapes.echo_last((), N)
    view = case.view(data, asked)
    assert view.positions == ()
    assert view.bonus == ((A,) if case.form == "ids" else (" a",))


# -- fanout ----------------------------------------------------------------------------------------


def test_fanout_shows_the_targets_own_draw_everywhere() -> None:
    """All m tokens of every answer, in the order of the prompts."""
    draws = ((PARIS, BANG), (BANG, EOS), (A,))
    data = shapes.fanout((PARIS, DOT), N, draws)
    data["choices"].reverse()
    view = DIALECTS["fanout"].view(data, ask("ids", max_tokens=2), 0.0)
    assert view.samples == (
        Sample((PARIS, BANG), "length"),
        Sample((BANG, EOS), "stop"),
        Sample((A,), "length"),
    )
    assert (view.bonus, view.finish) == ((A,), "length")
    assert view.positions == (
        Position(PARIS, shapes.logprob(0, PARIS), tuple(shapes.top(0, N))),
        Position(DOT, shapes.logprob(1, DOT), tuple(shapes.top(1, N))),
    )


def test_fanout_by_text_compares_pieces_and_strings() -> None:
    """An end token has no text; a draft without pieces is one piece."""
    data = shapes.fanout((PARIS, DOT), N, ((PARIS,), (BANG, EOS), (EOS,)))
    view = CASES["fanout by text"].view(data, CASES["fanout by text"].ask(max_tokens=2))
    assert view.samples == (
        Sample((" Paris",), "length"),
        Sample(("!",), "stop"),
        Sample((), "stop"),
    )
    assert [position.key for position in view.positions] == [" Paris", "."]
    whole = ask("text")
    assert DIALECTS["fanout"].request(whole).payload["prompt"] == [
        "The capital is",
        "The capital is Paris.",
    ]


def test_fanout_does_not_know_an_unlisted_drafts_probability() -> None:
    """``None`` says "not shown"; the alternatives are the same whatever was drafted."""
    view = CASES["fanout by ids"].view(shapes.fanout((NOT,), N), ask("ids", (NOT,)))
    assert view.positions == (Position(NOT, None, tuple(shapes.top(0, N))),)


def test_an_end_behind_unreadable_tokens_is_not_believed() -> None:
    """Halves of a character, then the end: the character would be lost if the answer ended here."""
    said = {"tokens": ["\ufffd", "\ufffd", "</s>"], "token_logprobs": [-0.9] * 3,
            "top_logprobs": [{"a": -0.5}] * 3}  # fmt: skip
    choice = {"text": "é", "logprobs": said, "finish_reason": "stop", "index": 0}
    asked = Ask("m", "", text="It", max_tokens=8)
    view = DIALECTS["echo"].view({"choices": [choice]}, asked, 0.0)
    assert (view.bonus, view.finish) == ((), None)
    sample = DIALECTS["fanout"].view({"choices": [choice]}, asked, 0.0).samples[0]
    assert (sample.tokens, sample.finish) == ((), None)


def test_fanout_takes_an_end_without_an_entry() -> None:
    """Some servers show no end token."""
    data = shapes.fanout((PARIS,), N)
    data["choices"][1] |= {"text": "", "logprobs": None, "finish_reason": "stop"}
    view = CASES["fanout by ids"].view(data, ask("ids", (PARIS,)))
    assert view.samples[1] == Sample((), "stop")
    assert view.bonus == ()


def test_fanout_counts_what_was_certainly_used() -> None:
    """llama.cpp's usage has one prompt of the list."""
    usage = CASES["fanout by ids"].view(CASES["fanout by ids"].honest()).usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (3 + 4 + 5, 3)


def test_fanout_never_sends_a_seed() -> None:
    """One seed over several draws would make them depend on each other."""
    payload = DIALECTS["fanout"].request(ask("ids", sampling={"seed": 3, "top_p": 0.9})).payload
    assert "seed" not in payload
    assert payload["top_p"] == 0.9


def test_a_token_inside_a_character_leaves_its_place_unknown() -> None:
    """llama.cpp shows neither its entry nor its text: that position is lost, not the answer."""
    data = shapes.fanout((PARIS, DOT), N)
    for text in ("", "\ufffd"):
        data["choices"][1] |= {"text": text, "logprobs": None}
        view = CASES["fanout by ids"].view(data)
        assert view.samples == (
            Sample((PARIS,), "length"),
            Sample((), "length"),
            Sample((A,), "length"),
        )
        assert view.positions[1] == Position(DOT, None, ())


def test_native_fanout_names_every_token() -> None:
    """Also where a token inside a character has no entry; one prompt is answered by one object."""
    data = shapes.native_fanout((PARIS, DOT), N)
    data["answers"][1] |= {"tokens": [HALF], "content": "", "completion_probabilities": []}
    data["answers"].reverse()
    view = CASES["native_fanout"].view(data)
    assert view.samples == (
        Sample((PARIS,), "length"),
        Sample((HALF,), "length"),
        Sample((A,), "length"),
    )
    assert view.positions == (
        Position(PARIS, shapes.logprob(0, PARIS), tuple(shapes.top(0, N))),
        Position(DOT, None, ()),
    )
    assert (view.usage.prompt_tokens, view.usage.completion_tokens) == (3 + 4 + 5, 3)
    assert (view.usage.cached_tokens, view.before) == (6, 3)
    (answer,) = shapes.native_fanout((), N, ((EOS,),))["answers"]
    view = CASES["native_fanout"].view(answer, ask("ids", ()))
    assert (view.bonus, view.finish) == ((EOS,), "stop")


def test_native_fanout_never_sends_a_seed() -> None:
    """One seed over several draws would make them depend on each other."""
    asked = ask("ids", sampling={"seed": 3, "top_p": 0.9})
    payload = DIALECTS["native_fanout"].request(asked).payload
    assert "seed" not in payload
    assert payload["top_p"] == 0.9


# -- requests --------------------------------------------------------------------------------------

SAMPLING = {"temperature": 0.5}
COMMON = {"model": "m", "logprobs": 2, "max_tokens": 1, "temperature": 0.5}
SENT = [*CONTEXT, PARIS, DOT]
NAMED = {"return_tokens_as_token_ids": True}
BEGUN = [*shapes.MESSAGES, {"role": "assistant", "content": "The capital is Paris."}]
CHAT = {
    "model": "m",
    "messages": BEGUN,
    "logprobs": True,
    "top_logprobs": 2,
    "max_tokens": 1,
    "temperature": 0.5,
    "continue_final_message": True,
    "add_generation_prompt": False,
}
REQUESTS: list[tuple[str, str, str, dict[str, Any]]] = [
    ("echo", "ids", "/completions", {**COMMON, **NAMED, "prompt": SENT, "echo": True}),
    ("echo", "text", "/completions", {**COMMON, "prompt": "The capital is Paris.", "echo": True}),
    (
        "echo_last",
        "ids",
        "/completions",
        {**COMMON, **NAMED, "prompt": SENT, "echo_last": 2, "logprobs": True, "top_logprobs": 2},
    ),
    (
        "echo_last",
        "text",
        "/completions",
        {
            **COMMON,
            "prompt": "The capital is Paris.",
            "echo_last": 7,
            "logprobs": True,
            "top_logprobs": 2,
        },
    ),
    (
        "prompt_logprobs",
        "ids",
        "/completions",
        {**COMMON, **NAMED, "prompt": SENT, "prompt_logprobs": 2, "logprobs": 1},
    ),
    (
        "prompt_logprobs",
        "chat",
        "/chat/completions",
        {**CHAT, "prompt_logprobs": 2, "return_token_ids": True},
    ),
    (
        "generate",
        "ids",
        "/generate",
        {
            "input_ids": SENT,
            "sampling_params": {"temperature": 0.5, "max_new_tokens": 1},
            "return_logprob": True,
            "logprob_start_len": 2,
            "top_logprobs_num": 2,
        },
    ),
    (
        "together",
        "text",
        "/completions",
        {**COMMON, "prompt": "The capital is Paris.", "echo": True},
    ),
    (
        "mistral",
        "chat",
        "/chat/completions",
        {**CHAT, "prompt_logprobs": True, "top_prompt_logprobs": 2},
    ),
    (
        "fanout",
        "ids",
        "/completions",
        {**COMMON, **NAMED, "prompt": [SENT[:3], SENT[:4], SENT]},
    ),
    (
        "native_fanout",
        "ids",
        "/completion",
        {
            "model": "m",
            "temperature": 0.5,
            "prompt": [SENT[:3], SENT[:4], SENT],
            "n_predict": 1,
            "n_probs": 2,
            "return_tokens": True,
        },
    ),
]


@pytest.mark.parametrize(("name", "form", "path", "payload"), REQUESTS)
def test_the_request(name: str, form: str, path: str, payload: dict[str, Any]) -> None:
    """Exactly the documented fields."""
    request = DIALECTS[name].request(ask(form, sampling=SAMPLING))
    assert (request.path, request.payload) == (path, payload)
    assert request.root is (name in ("generate", "native_fanout"))
    assert request.listed is (name == "native_fanout")


def test_templated_text_gets_no_second_bos() -> None:
    """vLLM adds special tokens to text prompts on /completions."""
    caps = Capabilities(completions=True, adds_bos=True)
    made = DIALECTS["echo"].request(ask("text", templated=True, capabilities=caps)).payload
    assert made["add_special_tokens"] is False
    plain = DIALECTS["echo"].request(ask("text", capabilities=caps)).payload
    assert "add_special_tokens" not in plain


def test_mistral_calls_the_seed_its_own_way() -> None:
    """``random_seed``."""
    caps = Capabilities(prefill="prefix", seed_param="random_seed")
    payload = (
        DIALECTS["mistral"].request(ask("chat", sampling={"seed": 4}, capabilities=caps)).payload
    )
    assert payload["random_seed"] == 4
    assert "seed" not in payload
    assert payload["messages"][-1] == {**BEGUN[-1], "prefix": True}


def test_generate_refuses_what_it_cannot_express() -> None:
    """A field left out in silence would change what is drawn."""
    with pytest.raises(BadEvidence, match="generate has no typical_p"):
        DIALECTS["generate"].request(ask("ids", sampling={"typical_p": 0.9}))
    payload = DIALECTS["generate"].request(ask("ids", sampling={"seed": 1})).payload
    assert payload["sampling_params"]["sampling_seed"] == 1


@pytest.mark.parametrize("name", ["prompt_logprobs in chat", "mistral"])
def test_space_at_the_end_of_a_prefill_is_held_back(name: str) -> None:
    """Templates trim it: what was generated without it doesn't count."""
    case = CASES[name]
    asked = Ask(
        "m",
        " Paris. ",
        messages=shapes.MESSAGES,
        committed=shapes.TEXT,
        logprobs=N,
        capabilities=CAPABLE,
    )
    payload = DIALECTS[case.dialect].request(asked).payload
    assert payload["messages"][-1]["content"] == "The capital is Paris."
    view = case.view(case.honest(), asked)
    assert view.positions == expected(case, (PARIS, DOT))
    assert (view.bonus, view.finish) == ((), None)


def test_an_ask_has_one_context_and_a_draft_of_its_form() -> None:
    """Programming errors are ValueErrors, not evidence."""
    for wrong in (
        {"draft": "x"},
        {"draft": "x", "ids": (1,)},
        {"draft": (1,), "text": "x"},
        {"draft": "x", "text": "y", "messages": ()},
        {"draft": "ab", "text": "y", "pieces": ("a",)},
        {"draft": "ab", "text": "y", "logprobs": 0},
    ):
        with pytest.raises(ValueError):
            Ask("m", **wrong)  # type: ignore[arg-type]


# -- lies ------------------------------------------------------------------------------------------


def shown(data: dict[str, Any]) -> dict[str, Any]:
    return data["choices"][0]["logprobs"]


def drop(data: dict[str, Any], path: str) -> None:
    """Remove what ``a.0.b`` leads to."""
    *way, last = path.split(".")
    at: Any = data
    for step in way:
        at = at[int(step) if isinstance(at, list) else step]
    del at[int(last) if isinstance(at, list) else last]


def put(path: str, value: Any) -> Edit:
    """Set what ``a.0.b`` leads to."""

    def edit(data: dict[str, Any]) -> None:
        *way, last = path.split(".")
        at: Any = data
        for step in way:
            at = at[int(step) if isinstance(at, list) else step]
        at[int(last) if isinstance(at, list) else last] = value

    return edit


def lists(change: Callable[[list[Any]], object]) -> Edit:
    """Change each of the parallel lists."""

    def edit(data: dict[str, Any]) -> None:
        for values in shown(data).values():
            change(values)

    return edit


def generated_only(data: dict[str, Any]) -> None:
    """200 with log-probabilities of what was generated, the prompt echoed or not."""
    for values in shown(data).values():
        del values[:-1]


def shift(values: list[Any]) -> None:
    """One place earlier than they should be, the last repeated."""
    values[:] = [*values[1:], values[-1]]


LOGPROBS = "choices.0.logprobs"
PROMPT = "choices.0.prompt_logprobs"
NATIVE = "answers.0.completion_probabilities"
META = "meta_info"
LIES: list[tuple[str, str, Edit, str]] = [
    # (case, lie, edit of the honest answer, what the refusal says)
    ("echo by ids", "echo ignored", generated_only, "left out"),
    ("echo by ids", "an entry less", lists(lambda v: v.pop(1)), "entry 1 is"),
    ("echo by ids", "shifted tokens", lists(shift), "entry 0 is"),
    ("echo by ids", "another id", put(f"{LOGPROBS}.tokens.4", "token_id:9"), "is 9, but"),
    ("echo by ids", "text for ids", put(f"{LOGPROBS}.tokens.4", "."), r"is '\.', but"),
    ("echo by ids", "positive", put(f"{LOGPROBS}.token_logprobs.3", 0.7), "positive"),
    ("echo by ids", "null", put(f"{LOGPROBS}.token_logprobs.3", None), "is None"),
    ("echo by ids", "NaN", put(f"{LOGPROBS}.token_logprobs.4", math.nan), "is nan"),
    ("echo by ids", "a string", put(f"{LOGPROBS}.token_logprobs.4", "-1"), "is '-1'"),
    ("echo by ids", "true", put(f"{LOGPROBS}.token_logprobs.4", True), "is True"),
    (
        "echo by ids",
        "lists of unequal length",
        put(f"{LOGPROBS}.token_logprobs", []),
        "6 tokens, 0",
    ),
    ("echo by ids", "no alternatives", put(f"{LOGPROBS}.top_logprobs", None), "no alternatives"),
    ("echo by ids", "none at one place", put(f"{LOGPROBS}.top_logprobs.3", {}), "no alternatives"),
    (
        "echo by ids",
        "a positive alternative",
        put(f"{LOGPROBS}.top_logprobs.3", {"token_id:4": -0.5, "token_id:5": 1.0}),
        "positive",
    ),
    (
        "echo by ids",
        "more alternatives than N + 1",
        put(f"{LOGPROBS}.top_logprobs.3", {f"token_id:{i}": -5.0 for i in range(4, 8)} | {}),
        "more probable than|4 alternatives",
    ),
    (
        "echo by ids",
        "N + 1 alternatives, but not for the token's sake",
        put(
            f"{LOGPROBS}.top_logprobs.3",
            {f"token_id:{PARIS}": math.log(0.6), "token_id:1": -3.0, "token_id:2": -4.0},
        ),
        "not for the token's sake",
    ),
    (
        "echo by ids",
        "N + 1 alternatives without the token",
        put(
            f"{LOGPROBS}.top_logprobs.3",
            {"token_id:3": -0.5, "token_id:1": -3.0, "token_id:2": -4.0},
        ),
        "3 alternatives, 2",
    ),
    (
        "echo by ids",
        "two values for one token",
        put(f"{LOGPROBS}.top_logprobs.3", {f"token_id:{PARIS}": -0.1}),
        "two log-probabilities",
    ),
    (
        "echo by ids",
        "the most probable isn't among them",
        put(f"{LOGPROBS}.top_logprobs.3", {"token_id:1": -3.0}),
        "more probable than its most probable",
    ),
    (
        "echo by ids",
        "more than all probability",
        put(f"{LOGPROBS}.top_logprobs.3", {f"token_id:{PARIS}": math.log(0.6), "token_id:5": -0.1}),
        "more than all probability",
    ),
    (
        "echo by ids",
        "alternatives as text",
        put(f"{LOGPROBS}.top_logprobs.3", {" P": -0.1}),
        "an id",
    ),
    ("echo by ids", "no logprobs", put(LOGPROBS, None), "no logprobs"),
    ("echo by ids", "no choice", put("choices", []), "no choice"),
    ("echo by ids", "two choices", lambda d: d["choices"].append(d["choices"][0]), "2 choices"),
    ("echo by ids", "another layout", put(LOGPROBS, {"content": []}), "left out"),
    ("echo by ids", "more than asked for", lists(lambda v: v.append(v[-1])), "2 tokens were"),
    ("echo by text", "echo ignored", put("choices.0.text", " a"), "does not begin"),
    ("echo by text", "entries of the generated alone", generated_only, "end before"),
    ("echo by text", "other strings", put(f"{LOGPROBS}.tokens.1", " town"), "join|before"),
    ("echo by text", "another draft", put(f"{LOGPROBS}.tokens.3", " Milan"), "join to the draft"),
    ("echo by text", "a straddling token", lists(lambda v: v.pop(2)), "join|straddles|before"),
    ("echo by text", "a split character", put(f"{LOGPROBS}.tokens.3", " Pa\ufffd"), "join"),
    (
        "echo by text",
        "two alternatives with one name",
        put(f"{LOGPROBS}.top_logprobs.3", {" Rome": -0.9, " Paris": 0.5}),
        "positive",
    ),
    (
        "echo_last by ids",
        "generated only",
        lambda d: shown(d)["content"].pop(0),
        "entries for|is 6",
    ),
    ("echo_last by ids", "none", put(LOGPROBS, {"content": []}), "0 entries for 2"),
    ("echo_last by ids", "another id", put(f"{LOGPROBS}.content.0.token_id", 9), "is 9, but"),
    ("echo_last by ids", "no ids", lambda d: drop(d, f"{LOGPROBS}.content.1.token_id"), "is None"),
    ("echo_last by ids", "positive", put(f"{LOGPROBS}.content.0.logprob", 2.0), "positive"),
    ("echo_last by ids", "null", put(f"{LOGPROBS}.content.0.logprob", None), "is None"),
    (
        "echo_last by ids",
        "no tops",
        put(f"{LOGPROBS}.content.0.top_logprobs", []),
        "no alternatives",
    ),
    (
        "echo_last by ids",
        "alternatives without ids",
        lambda d: drop(d, f"{LOGPROBS}.content.0.top_logprobs.0.token_id"),
        "without an id",
    ),
    (
        "echo_last by ids",
        "an alternative twice",
        lambda d: shown(d)["content"][0]["top_logprobs"].append(
            shown(d)["content"][0]["top_logprobs"][0]
        ),
        "two alternatives",
    ),
    ("echo_last by text", "no count", put("usage", None), "None were generated"),
    ("echo_last by text", "a wrong count", put("usage.completion_tokens", 0), "join"),
    ("echo_last by text", "strange bytes", put(f"{LOGPROBS}.content.2.bytes", [300]), "bytes"),
    ("echo_last by text", "other text", put("choices.0.text", "x"), "does not begin"),
    ("prompt_logprobs", "ignored", lambda d: drop(d, PROMPT), "no prompt_logprobs"),
    ("prompt_logprobs", "fewer", lambda d: drop(d, f"{PROMPT}.0"), "4 prompt_logprobs for 5"),
    ("prompt_logprobs", "a null", put(f"{PROMPT}.3", None), "no log-probabilities"),
    ("prompt_logprobs", "empty", put(f"{PROMPT}.3", {}), "no log-probabilities"),
    ("prompt_logprobs", "shifted", lambda d: shift(d["choices"][0]["prompt_logprobs"]), "sent as"),
    ("prompt_logprobs", "malformed", put(f"{PROMPT}.3.x", 1), "malformed"),
    ("prompt_logprobs", "positive", put(f"{PROMPT}.3.4.logprob", 3), "positive"),
    ("prompt_logprobs", "no value", put(f"{PROMPT}.3.4", {"rank": 1}), "is None"),
    (
        "prompt_logprobs",
        "a better one than rank 1",
        put(f"{PROMPT}.3.5.logprob", -0.1),
        "rank 1, but 1",
    ),
    (
        "prompt_logprobs",
        "generated without ids",
        put(f"{LOGPROBS}.tokens.0", " a"),
        "without an id",
    ),
    (
        "prompt_logprobs in chat",
        "another chat",
        put("prompt_token_ids", [1, 2, 3]),
        "for 3 prompt tokens",
    ),
    ("prompt_logprobs in chat", "ids that differ", put("prompt_token_ids.9", 77), "is 77, which"),
    (
        "prompt_logprobs in chat",
        "in the wrong place",
        lambda d: drop(d, "prompt_logprobs"),
        "has no",
    ),
    (
        "prompt_logprobs in chat",
        "no strings",
        put("prompt_logprobs.9.6.decoded_token", None),
        "join",
    ),
    (
        "prompt_logprobs in chat",
        "the draft is not the end of the prompt",
        lambda d: (
            d["prompt_logprobs"].append(d["prompt_logprobs"][1]),
            d["prompt_token_ids"].append(101),
        ),
        "join to the draft",
    ),
    (
        "the same without ids",
        "the committed text differs",
        put("prompt_logprobs.7", {"3": {"logprob": -1.5, "decoded_token": " was"}}),
        "join to the prompt",
    ),
    ("generate", "no meta", lambda d: drop(d, META), "no meta_info"),
    ("generate", "no input logprobs", lambda d: drop(d, f"{META}.input_token_logprobs"), "has no"),
    ("generate", "fewer", lambda d: drop(d, f"{META}.input_token_logprobs.0"), "3 were due"),
    ("generate", "another id", put(f"{META}.input_token_logprobs.1", [-0.5, 9, None]), "is 9"),
    ("generate", "null", put(f"{META}.input_token_logprobs.1", [None, PARIS, None]), "is None"),
    ("generate", "positive", put(f"{META}.input_token_logprobs.1", [1.0, PARIS, None]), "positive"),
    ("generate", "malformed", put(f"{META}.input_token_logprobs.1", [-0.5]), "has an item"),
    ("generate", "no tops", lambda d: drop(d, f"{META}.input_top_logprobs"), "one list per"),
    ("generate", "fewer tops", lambda d: drop(d, f"{META}.input_top_logprobs.0"), "one list per"),
    ("generate", "empty tops", put(f"{META}.input_top_logprobs.2", []), "no alternatives"),
    (
        "generate",
        "tops shifted",
        lambda d: shift(d[META]["input_top_logprobs"]),
        "more probable|two log",
    ),
    (
        "generate",
        "generates more",
        lambda d: d[META]["output_token_logprobs"].append([-1.0, A, None]),
        "2 tokens were",
    ),
    ("together", "no prompt", put("prompt", []), "the one prompt"),
    ("together", "no prompt field", lambda d: drop(d, "prompt"), "the one prompt"),
    ("together", "another prompt", put("prompt.0.text", "x"), "not the one"),
    ("together", "no logprobs", put("prompt.0.logprobs", None), "no logprobs"),
    ("together", "null", put("prompt.0.logprobs.token_logprobs.4", None), "is None"),
    ("together", "positive", put("prompt.0.logprobs.token_logprobs.5", 0.1), "positive"),
    (
        "together",
        "strings differ",
        put("prompt.0.logprobs.tokens.2", " city"),
        "join to the prompt",
    ),
    ("together", "draft differs", put("prompt.0.logprobs.tokens.5", "?"), "join to the draft"),
    ("together", "fewer values", put("prompt.0.logprobs.token_logprobs", [None]), "6 tokens, 1"),
    ("mistral", "ignored", lambda d: drop(d, PROMPT), "no logprobs"),
    ("mistral", "null", put(PROMPT, None), "no logprobs"),
    ("mistral", "fewer", lambda d: drop(d, f"{PROMPT}.content.8"), "join to the draft"),
    ("mistral", "positive", put(f"{PROMPT}.content.8.logprob", 1.0), "positive"),
    ("mistral", "no tops", put(f"{PROMPT}.content.8.top_logprobs", []), "no alternatives"),
    ("mistral", "no token", put(f"{PROMPT}.content.8", {"logprob": -1}), "entry 8 has no token"),
    (
        "mistral",
        "two alternatives with one name",
        put(f"{PROMPT}.content.8.top_logprobs.0.token", "!"),
        "called '!'",
    ),
    ("fanout by ids", "one choice", lambda d: d["choices"].pop(), "3 prompts were sent, 2"),
    ("fanout by ids", "an index twice", put("choices.1.index", 0), "indices"),
    ("fanout by ids", "no index", lambda d: drop(d, "choices.1.index"), "indices"),
    ("fanout by ids", "empty", put("choices.1.logprobs.content", []), "is empty"),
    ("fanout by ids", "no logprobs", put("choices.1.logprobs", None), "no logprobs"),
    ("fanout by ids", "no ids", lambda d: drop(d, f"{LOGPROBS}.content.0.id"), "without an id"),
    ("fanout by ids", "positive", put(f"{LOGPROBS}.content.0.logprob", 4.0), "positive"),
    ("fanout by ids", "null", put(f"{LOGPROBS}.content.0.logprob", None), "is None"),
    (
        "fanout by ids",
        "more than asked for",
        lambda d: shown(d)["content"].append(shown(d)["content"][0]),
        "2 tokens were",
    ),
    ("native_fanout", "one answer", lambda d: d["answers"].pop(), "3 prompts were sent, 2"),
    ("native_fanout", "an index twice", put("answers.1.index", 0), "indices"),
    ("native_fanout", "no tokens", put("answers.1.tokens", []), "names no tokens"),
    ("native_fanout", "no ids", put("answers.1.tokens", ["!"]), "no ids"),
    ("native_fanout", "two tokens", put("answers.1.tokens", [BANG, A]), "1 were asked for"),
    ("native_fanout", "two names", put("answers.1.tokens", [DOT]), "and then"),
    ("native_fanout", "cut off", put("answers.1.truncated", True), "was made from 4"),
    ("native_fanout", "another prompt", put("answers.1.tokens_evaluated", 7), "made from 7"),
    ("native_fanout", "a stop word", put("answers.1.stop_type", "word"), "ended by 'word'"),
    ("native_fanout", "positive", put(f"{NATIVE}.0.logprob", 4.0), "positive"),
    ("native_fanout", "null", put(f"{NATIVE}.0.logprob", None), "is None"),
    ("native_fanout", "no tops", put(f"{NATIVE}.0.top_logprobs", []), "no alternatives"),
    (
        "native_fanout",
        "more probability than there is",
        put(f"{NATIVE}.0.top_logprobs.1.logprob", -0.1),
        "more probable|more than all",
    ),
    ("fanout by ids", "no tops", put(f"{LOGPROBS}.content.0.top_logprobs", []), "no alternatives"),
]


@pytest.mark.parametrize(
    ("name", "edit", "reason"),
    [pytest.param(c, edit, reason, id=f"{c}: {lie}") for c, lie, edit, reason in LIES],
)
def test_a_lie_is_refused_with_its_reason(name: str, edit: Edit, reason: str) -> None:
    """The honest answer passes; the same with one thing wrong does not."""
    case = CASES[name]
    data = copy.deepcopy(case.honest())
    case.view(data)
    edit(data)
    with pytest.raises(BadEvidence, match=reason):
        case.view(data)


@pytest.mark.parametrize("name", CASES)
def test_no_answer_at_all_is_refused(name: str) -> None:
    """Whatever is no answer raises BadEvidence and nothing else."""
    for data in ({}, {"choices": None}, {"choices": [None]}, {"choices": [{}]}, {"meta_info": {}}):
        with pytest.raises(BadEvidence):
            CASES[name].view(data)


@pytest.mark.parametrize("name", CASES)
def test_damage_anywhere_never_raises_anything_else(name: str) -> None:
    """Each value of the answer replaced by each kind of rubbish: a view or BadEvidence."""
    case = CASES[name]
    paths: list[list[Any]] = []

    def walk(at: Any, way: list[Any]) -> None:
        paths.append(way)
        steps = (
            at.items() if isinstance(at, dict) else enumerate(at) if isinstance(at, list) else ()
        )
        for step, value in steps:
            walk(value, [*way, step])

    walk(case.honest(), [])
    for way in paths[1:]:
        for rubbish in (None, [], {}, "x", -1, 1e400, [[]], {"a": 1}):
            data = copy.deepcopy(case.honest())
            at: Any = data
            for step in way[:-1]:
                at = at[step]
            at[way[-1]] = rubbish
            try:
                case.view(data)
            except BadEvidence as error:
                assert str(error)


def test_unreadable_names_may_collide() -> None:
    """Halves of characters have no string of their own: no reason to refuse a truthful server."""
    data = shapes.mistral((PARIS, DOT), 3)
    tops = data["choices"][0]["prompt_logprobs"]["content"][7]["top_logprobs"]
    tops[1]["token"] = tops[2]["token"] = WORDS[HALF]
    view = CASES["mistral"].view(data, ask("chat", logprobs=3))
    assert view.positions[0].top == (
        (" Paris", math.log(0.6)),
        ("\ufffd", math.log(0.2)),
    )


def split(before: list[str], names: list[str], values: list[float]) -> dict[str, Any]:
    """vLLM's echo of "is" and a smile in three tokens: two without a string, then the whole."""
    tokens = [*before, *names, "!"]
    tops = [
        None,
        *({name: -1.0} for name in before[1:]),
        *({n: v} for n, v in zip(names, values, strict=True)),
    ]
    logprobs = [None, *(-1.0 for _ in before[1:]), *values, -0.1]
    said = {"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": [*tops, {"!": -0.1}]}
    return shapes.completion({"text": "".join(tokens), "logprobs": said}, len(tokens) - 1)


@pytest.mark.parametrize("draft", ["😀", " 😀"])
def test_the_parts_of_a_split_character_are_judged_with_it(draft: str) -> None:
    """Their empty strings stand before it; left out, its beginning would pass unjudged."""
    data = split(["It", " is"], ["", "", draft], [-3.0, -0.2, -0.1])
    asked = Ask("m", draft, text="It is")
    view = DIALECTS["echo"].view(data, asked, 0.0)
    assert [(p.key, p.logprob) for p in view.positions] == [("", -3.0), ("", -0.2), (draft, -0.1)]
    assert view.before == 2


def test_an_empty_string_before_plain_text_is_no_part_of_it() -> None:
    """It is a special token's, or the end of something else's."""
    data = split(["It", " is", ""], [" so"], [-3.0])
    view = DIALECTS["echo"].view(data, Ask("m", " so", text="It is"), 0.0)
    assert [(p.key, p.logprob) for p in view.positions] == [(" so", -3.0)]


def test_with_bytes_nothing_is_guessed() -> None:
    """A control token without bytes before a character is no part of the draft."""
    data = shapes.mistral((PARIS,), N)
    content = data["choices"][0]["prompt_logprobs"]["content"]
    smile = {"token": "😀", "bytes": list("😀".encode()), "logprob": -0.5, "token_id": 7}
    control = {"token": "[/INST]", "bytes": [], "logprob": -9.0, "token_id": 8}
    content[-1:] = [control, {**smile, "top_logprobs": [smile]}]
    asked = Ask("m", "😀", messages=shapes.MESSAGES, capabilities=CAPABLE)
    view = DIALECTS["mistral"].view(data, asked, 0.0)
    assert view.positions == (Position("😀", -0.5, (("😀", -0.5),)),)


# -- the registry ----------------------------------------------------------------------------------


def test_every_word_of_a_profile_is_a_dialect() -> None:
    """``score`` can name nothing that isn't here."""
    assert set(SCORE_DIALECTS) <= DIALECTS.keys()


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        (
            "vllm",
            [
                ("echo", ("ids", "text")),
                ("prompt_logprobs", ("ids", "chat")),
                ("fanout", ("ids", "text")),
            ],
        ),
        ("sglang", [("generate", ("ids",)), ("echo", ("text",))]),
        ("fireworks", [("echo_last", ("ids", "text")), ("echo", ("text",))]),
        ("together", [("together", ("text",))]),
        ("llama-server", [("native_fanout", ("ids",)), ("fanout", ("ids", "text"))]),
        (
            "reference",
            [
                ("echo", ("ids", "text")),
                ("prompt_logprobs", ("ids", "chat")),
                ("generate", ("ids",)),
                ("fanout", ("ids", "text")),
            ],
        ),
        ("mistral", []),
        ("gemini", []),
    ],
)
def test_what_a_profile_leads_to(profile: str, expected: list[Any]) -> None:
    """In the profile's order, with the forms that such a server takes."""
    found = dialects_of(load_profile(profile).capabilities)
    assert [(dialect.name, forms) for dialect, forms in found] == expected


@pytest.mark.parametrize("profile", profile_names())
def test_dialects_that_need_ids_take_nothing_else(profile: str) -> None:
    """What a registry entry says of itself holds for every profile."""
    for dialect, forms in dialects_of(load_profile(profile).capabilities):
        assert not dialect.needs_ids or forms == ("ids",)


def test_what_a_round_bills() -> None:
    """One prompt and m tokens; for fanout, that per drafted token and once more."""
    echo, fanout = DIALECTS["echo"].shows, DIALECTS["fanout"].shows
    assert (echo.prompts(4), echo.output_tokens(4, 2)) == (1, 2)
    assert (fanout.prompts(4), fanout.output_tokens(4, 2)) == (5, 10)
    keeping = [name for name, d in DIALECTS.items() if d.shows.keeps_cache]
    assert keeping == ["generate", "native_fanout", "fanout"]
