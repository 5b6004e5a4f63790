"""A config's tables become frozen values, or one error that lists every problem."""

import tomllib

import pytest

from specroute.config import (
    Config,
    PolicyConfig,
    StoreConfig,
    parse,
    parse_policy,
    plain_config,
    with_policy,
)
from specroute.config.view import effective
from specroute.errors import ConfigError
from specroute.types import TargetRef

ENV = {"LAB_API_KEY": "lab-key", "OPENAI_API_KEY": "openai-key"}

WHOLE = """
version = 1
default_provider = "openai"

[providers.lab]
profile = "vllm"
base_url = "http://10.0.0.5:8000/v1/"
env_key = "LAB_API_KEY"
headers = { X-Team = "search" }
query = { region = "eu" }
timeouts = { connect = 5, first_token = 8, stall = 15, total = 120, idle = 0 }
capabilities = { cached_tokens = true, score = ["echo"], prefill = "none" }
prices = { input = 0.1, output = 0.4, big = { input = 1, output = 2, cached_input = 0.5 } }

[drafts.qwen]
kind = "local"
model = "Qwen/Qwen3-0.6B"
device = "cuda:1"
dtype = "bfloat16"
temperature = 0.5
max_memory = "4GiB"

[drafts.mini]
kind = "remote"
provider = "openai"
model = "gpt-4o-mini"

[models.smart]
targets = ["lab:Qwen/Qwen3-32B:latest"]
drafts = ["qwen", "mini", "ngram"]
policy = { preset = "fixed", method = "score", num_speculative_tokens = 4 }
tokenizer = "Qwen/Qwen3-32B"

[models."gpt-4.1"]
targets = ["openai:gpt-4.1"]
"""


def toml(text: str) -> Config:
    return parse(tomllib.loads(text), "specroute.toml", ENV, versioned=True)


def problems(data: object, environ: dict[str, str] | None = None) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        parse(data, environ=ENV if environ is None else environ)  # type: ignore[arg-type]
    return caught.value.problems


def test_every_key_becomes_a_value() -> None:
    """The whole of a file ends up in the frozen values."""
    config = toml(WHOLE)
    lab = config.providers["lab"]
    assert (lab.profile, lab.base_url, lab.env_key) == (
        "vllm",
        "http://10.0.0.5:8000/v1",
        "LAB_API_KEY",
    )
    assert lab.key() == "lab-key"
    assert dict(lab.headers) == {"X-Team": "search"}
    assert dict(lab.query) == {"region": "eu"}
    assert (lab.timeouts.first_token, lab.timeouts.idle) == (8.0, 0.0)
    assert lab.timeouts_set == {"connect", "first_token", "stall", "total", "idle"}
    assert lab.capabilities == {"cached_tokens": True, "score": ("echo",), "prefill": None}
    assert lab.prices["big"] == {"input": 1.0, "output": 2.0, "cached_input": 0.5}
    qwen = config.drafts["qwen"]
    assert (qwen.device, qwen.dtype, qwen.temperature, qwen.max_memory) == (
        "cuda:1",
        "bfloat16",
        0.5,
        "4GiB",
    )
    smart = config.models["smart"]
    assert smart.targets == (TargetRef("lab", "Qwen/Qwen3-32B:latest"),)
    assert smart.policy == PolicyConfig("fixed", {"method": "score", "num_speculative_tokens": 4})
    assert smart.tokenizer == "Qwen/Qwen3-32B"
    assert config.models["gpt-4.1"].policy == PolicyConfig("balanced")
    assert config.default_provider == "openai"


def test_a_dict_is_the_same_as_a_file() -> None:
    """Written as a dict, a config gives the same values; only their origin differs."""
    data = tomllib.loads(WHOLE)
    of_dict = parse(data, environ=ENV)
    of_file = toml(WHOLE)
    assert of_dict.providers == of_file.providers
    assert of_dict.drafts == of_file.drafts
    assert of_dict.models == of_file.models
    del data["version"]
    assert parse(data, environ=ENV).models == of_file.models


def test_bundled_things_need_no_declaration() -> None:
    """Profiles with an address are providers, and a draft named ngram exists."""
    config = parse(
        {"models": {"m": {"targets": ["openai:gpt-4.1"], "drafts": ["ngram"]}}}, environ=ENV
    )
    assert config.providers["openai"].base_url == "https://api.openai.com/v1"
    assert config.providers["openai"].key() == "openai-key"
    assert not config.providers["openai"].declared
    assert config.drafts["ngram"].kind == "ngram"


def test_an_undeclared_providers_missing_variable_is_found_out_when_used() -> None:
    """Without the variable the config still loads; using the provider names it."""
    config = parse({"models": {"m": {"targets": ["openai:gpt-4.1"]}}}, environ={})
    with pytest.raises(ConfigError, match=r"providers\.openai\.env_key.*OPENAI_API_KEY.*not set"):
        config.providers["openai"].key()


LAB = {"profile": "vllm", "base_url": "http://h:1/v1"}

REFUSED = [
    # (tables, the message)
    ({"version": 2}, "version: expected 1, the only version this specroute reads, got 2"),
    ({"version": True}, "version: expected 1, the only version this specroute reads, got true"),
    (
        {"provider": {}},
        "provider: unknown key (did you mean 'providers'?); known: budgets, default_provider, drafts, "
        "models, providers, record, shadow, store, telemetry, version",
    ),
    ({"providers": []}, "providers: expected a table, got []"),
    ({"providers": {"lab": "http://x"}}, "providers.lab: expected a table, got 'http://x'"),
    ({7: {}}, "expected keys that are strings, got 7"),
    (
        {"default_provider": "opnai"},
        "default_provider: unknown provider 'opnai' (did you mean 'openai'?); known: ",
    ),
    (
        {"default_provider": "vllm"},
        "default_provider: profile 'vllm' has no address of its own; declare [providers.vllm] with "
        "a base_url",
    ),
    # providers
    (
        {"providers": {"lab": {"profile": "vlm", "base_url": "http://h/v1"}}},
        "providers.lab.profile: unknown profile 'vlm' (did you mean 'vllm'?); known: ",
    ),
    (
        {"providers": {"lab": {"profile": "vllm"}}},
        "providers.lab.base_url: required: profile 'vllm' has no address of its own; give the "
        'base, as in base_url = "http://10.0.0.5:8000/v1"',
    ),
    (
        {"providers": {"lab": {"base_url": "10.0.0.5:8000/v1"}}},
        "providers.lab.base_url: expected a base_url like 'https://host/v1', got "
        "'10.0.0.5:8000/v1'; write 'http://10.0.0.5:8000/v1' or 'https://10.0.0.5:8000/v1'",
    ),
    (
        {"providers": {"lab": {"base_url": "ftp://h/v1"}}},
        "providers.lab.base_url: expected a base_url like 'https://host/v1', got 'ftp://h/v1'; "
        "use http or https",
    ),
    (
        {"providers": {"lab": {"base_url": "http://h/v1/chat/completions"}}},
        "leave out '/chat/completions'; the client adds it",
    ),
    (
        {"providers": {"lab": {"base_url": "http://h/v1?a=b"}}},
        "put what follows '?' into `query`",
    ),
    ({"providers": {"lab": {"base_url": "http://h:99999/v1"}}}, "host or port can't be read"),
    ({"providers": {"lab": {"base_url": "http:///v1"}}}, "got 'http:///v1'"),
    ({"providers": {"lab": {"base_url": 5}}}, "providers.lab.base_url: expected a string, got 5"),
    (
        {"providers": {"lab": {"base_url": ""}}},
        "providers.lab.base_url: expected a non-empty string, got ''",
    ),
    (
        {"providers": {"lab": {**LAB, "env_key": "NO_SUCH_KEY"}}},
        "providers.lab.env_key: the environment variable NO_SUCH_KEY is not set",
    ),
    (
        {"providers": {"lab": {**LAB, "timeouts": {"first_tokn": 3}}}},
        "providers.lab.timeouts.first_tokn: unknown key (did you mean 'first_token'?); known: "
        "connect, first_token, idle, stall, total",
    ),
    (
        {"providers": {"lab": {**LAB, "timeouts": {"total": 0}}}},
        "providers.lab.timeouts.total: expected a number of seconds > 0, got 0",
    ),
    (
        {"providers": {"lab": {**LAB, "timeouts": {"total": True}}}},
        "providers.lab.timeouts.total: expected a number of seconds > 0, got true",
    ),
    (
        {"providers": {"lab": {**LAB, "timeouts": {"idle": float("inf")}}}},
        "providers.lab.timeouts.idle: expected a number of seconds, or 0 for never, got inf",
    ),
    (
        {"providers": {"lab": {**LAB, "capabilities": {"prefil": "prefix"}}}},
        "providers.lab.capabilities.prefil: unknown capability (did you mean 'prefill'?); "
        "`specroute providers` lists them",
    ),
    (
        {"providers": {"lab": {**LAB, "capabilities": {"score": ["ecko"]}}}},
        "providers.lab.capabilities.score: expected one of 'echo', 'prompt_logprobs', 'echo_last', "
        "'generate', 'native_fanout', 'fanout', 'mistral', got ['ecko'] (did you mean 'echo'?)",
    ),
    (
        {"providers": {"lab": {**LAB, "capabilities": {"score": "echo"}}}},
        "expected a list of strings, got 'echo'; write it in [ ]",
    ),
    (
        {"providers": {"lab": {**LAB, "capabilities": {"echo_max_logprobs": "5"}}}},
        "providers.lab.capabilities.echo_max_logprobs: expected a whole number ≥ 0, got '5'",
    ),
    (
        {"providers": {"lab": {**LAB, "prices": {"inptu": 1}}}},
        "providers.lab.prices.inptu: expected input, output, cached_input, or a table for a model, "
        "got 1 (did you mean 'input'?)",
    ),
    (
        {"providers": {"lab": {**LAB, "prices": {"input": -1}}}},
        "providers.lab.prices.input: expected USD per million tokens, a number ≥ 0, got -1",
    ),
    (
        {"providers": {"lab": {**LAB, "prices": {"m": {"in": 1}}}}},
        "providers.lab.prices.m.in: unknown key",
    ),
    (
        {"providers": {"a:b": LAB}},
        "providers.\"a:b\": a provider's name can't hold ':', which ends it in 'provider:model'",
    ),
    (
        {"providers": {"lab": {**LAB, "headers": {"X Y": "z"}}}},
        "providers.lab.headers: expected HTTP headers",
    ),
    # drafts
    (
        {"drafts": {"d": {"model": "x"}}},
        "drafts.d.kind: required: one of 'local', 'ngram', 'remote'",
    ),
    (
        {"drafts": {"d": {"kind": "loca"}}},
        "drafts.d.kind: expected one of 'local', 'ngram', 'remote', got 'loca' (did you mean "
        "'local'?)",
    ),
    ({"drafts": {"d": {"kind": "local"}}}, "drafts.d.model: required for kind = 'local'"),
    (
        {"drafts": {"d": {"kind": "remote", "model": "m"}}},
        "drafts.d.provider: required for kind = 'remote': a configured provider",
    ),
    (
        {"drafts": {"d": {"kind": "remote", "model": "m", "provider": "nobody"}}},
        "drafts.d.provider: unknown provider 'nobody'; known: ",
    ),
    (
        {"drafts": {"d": {"kind": "ngram", "device": "cpu"}}},
        "drafts.d.device: only for kind = 'local'; remove it",
    ),
    (
        {"drafts": {"d": {"kind": "local", "model": "m", "device": "gpu"}}},
        "drafts.d.device: expected 'auto', 'cpu', 'cuda' or 'cuda:<n>', got 'gpu'",
    ),
    (
        {"drafts": {"d": {"kind": "local", "model": "m", "dtype": "int8"}}},
        "drafts.d.dtype: expected one of 'auto', 'float32', 'bfloat16', 'float16', got 'int8'",
    ),
    (
        {"drafts": {"d": {"kind": "local", "model": "m", "max_memory": 4}}},
        "drafts.d.max_memory: expected an amount like '4GiB' or '500MB', got 4",
    ),
    (
        {"drafts": {"d": {"kind": "local", "model": "m", "temperature": -0.1}}},
        "drafts.d.temperature: expected a number ≥ 0, got -0.1",
    ),
    # models
    (
        {"models": {"m": {"targets": ()}}},
        'models.m.targets: required: at least one "provider:model"',
    ),
    ({"models": {"m": {}}}, 'models.m.targets: required: at least one "provider:model"'),
    (
        {"models": {"m": {"targets": "openai:gpt-4.1"}}},
        "models.m.targets: expected a list of strings, got 'openai:gpt-4.1'; write it in [ ]",
    ),
    (
        {"models": {"m": {"targets": ["gpt-4.1"]}}},
        "models.m.targets[0]: expected 'provider:model', got 'gpt-4.1'",
    ),
    (
        {"models": {"m": {"targets": ["opnai:gpt-4.1"]}}},
        "models.m.targets[0]: unknown provider 'opnai' (did you mean 'openai'?)",
    ),
    (
        {"models": {"m": {"targets": ["openai:x"], "drafts": ["ngrm"]}}},
        "models.m.drafts[0]: unknown draft 'ngrm' (did you mean 'ngram'?); known: ngram",
    ),
    (
        {"models": {"gpt-4.1": {"targets": ["openai:x"], "target": "x"}}},
        "models.\"gpt-4.1\".target: unknown key (did you mean 'targets'?)",
    ),
    (
        {"models": {"m": {"targets": ["openai:x"], "policy": "balancd"}}},
        "models.m.policy: unknown policy preset 'balancd' (did you mean 'balanced'?); known: "
        "balanced, cost, exact-only, fixed, latency, or 'module:Class'",
    ),
    (
        {"models": {"m": {"targets": ["openai:x"], "policy": 5}}},
        "models.m.policy: expected a preset's name or a table over a preset, got 5",
    ),
    (
        {"models": {"m": {"targets": ["openai:x"], "policy": {"preset": "fixed", "k": 5}}}},
        "models.m.policy.k: preset 'fixed' has no parameter of this name; it has: method, "
        "num_speculative_tokens, rounds_in_flight, lanes, predicted_tokens, min_accept, hedge, ",
    ),
    (
        {"models": {"m": {"targets": ["openai:x"], "policy": {"preset": "fixed", "method": "sc"}}}},
        "models.m.policy.method: expected one of 'score', 'prefix', 'predict', 'cascade', 'judge', "
        "'race', 'hedge', 'plain', got 'sc'",
    ),
    (
        {
            "models": {
                "m": {
                    "targets": ["openai:x"],
                    "policy": {"preset": "fixed", "num_speculative_tokens": 1.5},
                }
            }
        },
        "models.m.policy.num_speculative_tokens: expected a whole number ≥ 0, got 1.5",
    ),
    (
        {"models": {"m": {"targets": ["openai:x"], "policy": {"min_speedup": 0.5}}}},
        "models.m.policy.min_speedup: expected a number ≥ 1, got 0.5",
    ),
    # limits, budgets, store
    (
        {"providers": {"lab": {**LAB, "limits": {"rpm": 0}}}},
        "providers.lab.limits.rpm: expected a number a minute, ≥ 1, got 0",
    ),
    (
        {"providers": {"lab": {**LAB, "limits": {"rps": 3}}}},
        "providers.lab.limits.rps: unknown key",
    ),
    (
        {"budgets": {"daily": {"usd": -1}}},
        "budgets.daily.usd: expected an amount of dollars > 0, got -1",
    ),
    ({"budgets": {"weekly": {"usd": 1}}}, "budgets.weekly: unknown key"),
    (
        {"models": {"m": {"targets": ["openai:x"], "max_cost_usd": 0}}},
        "models.m.max_cost_usd: expected an amount of dollars > 0, got 0",
    ),
    ({"telemetry": {"log": "warn"}}, "telemetry.log: expected one of 'off', 'debug', 'info', got"),
    ({"telemetry": {"content": True}}, "telemetry.content: unknown key"),
    (
        {"store": {"kind": "etcd"}},
        "store.kind: expected one of 'memory', 'file', 'redis', got 'etcd'",
    ),
    ({"store": {"path": "x.sqlite3"}}, "store.path: only for kind = 'file'; remove it"),
]


@pytest.mark.parametrize(("data", "message"), REFUSED, ids=[m[:60] for _, m in REFUSED])
def test_a_mistake_is_refused_with_path_value_and_expectation(data: object, message: str) -> None:
    """Each mistake is one problem that shows where, what was seen and what was expected."""
    found = problems(data)
    assert any(message in problem for problem in found), found
    assert len(found) == 1, found


NOT_YET = [
    (
        {"exactness": "exact"},
        "exactness: an exactness floor outside a policy's parameters (exactness)",
    ),
    (
        {"models": {"m": {"targets": ["openai:x"], "policy": {"max_cost_usd": 0.01}}}},
        "models.m.policy.max_cost_usd: a cost limit (max_cost_usd)",
    ),
]


@pytest.mark.parametrize(("data", "message"), NOT_YET, ids=[m[:50] for _, m in NOT_YET])
def test_what_comes_later_says_so(data: object, message: str) -> None:
    """A key of a later version is not called unknown."""
    (problem,) = problems(data)
    assert message in problem
    assert "is not available in this version of specroute" in problem


def test_limits_budgets_and_store() -> None:
    """What may be asked and spent, and who shares it."""
    config = parse(
        {
            "providers": {"lab": {**LAB, "limits": {"rpm": 600, "tpm": 2e5}}},
            "models": {"m": {"targets": ["lab:x"], "max_cost_usd": 0.01}},
            "budgets": {"daily": {"usd": 5}},
            "store": {"kind": "file", "path": "limits.sqlite3"},
        },
        environ=ENV,
    )
    assert config.providers["lab"].limits == {"rpm": 600, "tpm": 200_000}
    assert config.models["m"].max_cost_usd == 0.01
    assert (config.daily_usd, config.store) == (5, StoreConfig("file", "limits.sqlite3"))
    shown = effective(config)
    assert shown["budgets"] == {"daily": {"usd": 5}}
    assert shown["providers"]["lab"]["limits"] == {"rpm": 600, "tpm": 200_000}
    assert shown["store"] == {"kind": "file", "path": "limits.sqlite3"}


def test_all_problems_come_at_once() -> None:
    """One error lists every problem of the file, and names the file."""
    with pytest.raises(ConfigError) as caught:
        toml(
            """
            [providers.lab]
            profile = "vlm"
            base_url = "h:1"
            [drafts.d]
            kind = "tpu"
            [models.m]
            targets = ["nobody:x"]
            polcy = "fixed"
            """
        )
    assert str(caught.value).startswith("specroute.toml: 6 problems\n  - version: missing")
    assert len(caught.value.problems) == 6


def test_a_policy_is_read_alone() -> None:
    """Per-client and per-request policies are read by the same rules."""
    assert parse_policy("fixed") == PolicyConfig("fixed")
    assert parse_policy({"preset": "fixed", "max_rounds": 1}).params == {"max_rounds": 1}
    with pytest.raises(ConfigError, match=r"policy\.max_round: .*did you mean 'max_rounds'"):
        parse_policy({"preset": "fixed", "max_round": 1})


def test_with_policy_changes_every_model_and_its_origins() -> None:
    """``with_options(policy=…)`` leaves the rest of the config alone."""
    config = toml(WHOLE)
    changed = with_policy(config, {"preset": "fixed", "method": "prefix"})
    assert {m.policy for m in map(_hashable, changed.models.values())} == {
        ("fixed", (("method", "prefix"),))
    }
    assert changed.providers == config.providers
    assert changed.origins["models.smart.policy.method"] == "with_options(policy=…)"
    assert changed.origins["models.smart.policy.max_rounds"] == "preset fixed"
    assert with_policy(plain_config("http://h/v1", environ={}), "fixed").models == {}


class _hashable:
    def __init__(self, model: object) -> None:
        policy: PolicyConfig = model.policy  # type: ignore[attr-defined]
        self.policy = (policy.preset, tuple(policy.params.items()))


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("http://h:8000", "http://h:8000"),
        ("http://h:8000/", "http://h:8000"),
        ("http://h:8000/v1", "http://h:8000/v1"),
        ("http://h:8000/v1//", "http://h:8000/v1"),
        (" https://h/a/b/ ", "https://h/a/b"),
        ("http://[::1]:8000/v1", "http://[::1]:8000/v1"),
    ],
)
def test_a_base_url_keeps_its_path_and_loses_its_slash(given: str, taken: str) -> None:
    """Nothing is added to an address; ``/v1`` is never guessed."""
    config = parse({"providers": {"lab": {"profile": "vllm", "base_url": given}}}, environ={})
    assert config.providers["lab"].base_url == taken


@pytest.mark.parametrize(
    ("table", "profile"),
    [
        ({"base_url": "https://api.groq.com/openai/v1"}, "groq"),
        ({"base_url": "https://api.deepseek.com/beta"}, "deepseek-beta"),
        ({"base_url": "https://api.deepseek.com/v1"}, "deepseek"),
        ({"base_url": "http://10.0.0.5:8000/v1"}, "generic"),
        ({"base_url": "http://10.0.0.5:8000/v1", "profile": "sglang"}, "sglang"),
    ],
)
def test_a_profile_is_found_by_name_or_address(table: dict[str, str], profile: str) -> None:
    """Without ``profile`` the address decides, and an unknown one is ``generic``."""
    config = parse({"providers": {"it": {**table, "env_key": ""}}}, environ={})
    assert config.providers["it"].profile == profile
