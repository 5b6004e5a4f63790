"""The bundled profiles are facts: dated, sourced, and free of logic."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from specroute import bundled_data
from specroute.config import parse
from specroute.errors import ConfigError
from specroute.profiles import (
    PREDICTION_CONFLICTS,
    Capabilities,
    Profile,
    capabilities_for,
    load_profile,
    parse_profile,
    profile_names,
)

EXPECTED = {
    "anthropic",
    "azure",
    "cerebras",
    "dashscope",
    "deepinfra",
    "deepseek",
    "fireworks",
    "gemini",
    "generic",
    "groq",
    "litellm",
    "llama-cpp-python",
    "llama-server",
    "mistral",
    "moonshot",
    "ollama",
    "openai",
    "openrouter",
    "reference",
    "sglang",
    "siliconflow",
    "tgi",
    "together",
    "transformers-serve",
    "vllm",
    "xai",
}
ADDRESS = ("base_url", "env_key", "hosts", "price_provider")


def test_every_provider_is_there() -> None:
    """No provider has gone missing."""
    assert set(profile_names()) >= EXPECTED


@pytest.mark.parametrize("name", profile_names())
def test_every_value_has_a_dated_source(name: str) -> None:
    """A field that a file states is named by one of its facts, which isn't "unknown"."""
    profile = load_profile(name)
    known = {f for fact in profile.facts if fact.kind != "unknown" for f in fact.fields}
    stated = set(profile.stated) - ({"chat"} if name == "generic" else set())
    stated |= {key for _, overrides in profile.models for key in overrides}
    stated |= {key for key in ADDRESS if getattr(profile, key)}
    assert stated <= known
    for fact in profile.facts:
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", fact.checked)
        assert len(fact.source) >= 4


@pytest.mark.parametrize("name", profile_names())
def test_what_is_unknown_is_left_out(name: str) -> None:
    """No file states a value that only an "unknown" fact speaks of."""
    profile = load_profile(name)
    for fact in profile.facts:
        if fact.kind == "unknown":
            other = {f for o in profile.facts if o.kind != "unknown" for f in o.fields}
            assert not (set(fact.fields) & set(profile.stated)) - other


@pytest.mark.parametrize("kind", ["providers", "policies"])
def test_files_are_data(kind: str) -> None:
    """No expressions, no conditions, no keys in the bundled files."""
    for name in bundled_data.names(kind):
        text = bundled_data.read(kind, name)
        assert not re.search(r"\{\{|\$\{|==|\bif\s*\(|\blambda\b|\bsk-", text), name


def test_generic_is_cautious() -> None:
    """Of an unknown server nothing but chat is assumed."""
    assert load_profile("generic").capabilities == Capabilities()


def test_the_packages_files_are_found_beside_the_checkout() -> None:
    """An editable install reads the checkout's own folders."""
    assert (Path(str(bundled_data.folder("providers"))) / "openai.toml").is_file()


def test_capabilities_come_from_profile_model_and_config_in_that_order() -> None:
    """Later ones win, and the profile's own value is left alone."""
    profile = load_profile("openai")
    assert capabilities_for(profile, None, "gpt-5").chat_max_logprobs == 0
    assert capabilities_for(profile, None, "gpt-4.1-mini").prediction is True
    assert capabilities_for(profile, None, "gpt-4o-audio-preview").prediction is False
    assert capabilities_for(profile, None, "babbage-002").score == ("echo",)
    config = parse(
        {"providers": {"openai": {"capabilities": {"prediction": False, "score": ["fanout"]}}}},
        environ={"OPENAI_API_KEY": "k"},
    )
    found = capabilities_for(profile, config.providers["openai"], "gpt-4.1")
    assert (found.prediction, found.score) == (False, ("fanout",))
    assert profile.capabilities.score == ()


def test_an_override_that_is_no_capability_is_refused() -> None:
    """Also when the provider wasn't made by the parser."""

    class Odd:
        capabilities = {"preffil": "prefix"}  # noqa: RUF012

    with pytest.raises(ConfigError, match="did you mean 'prefill'"):
        capabilities_for(load_profile("generic"), Odd(), "m")


def test_an_unknown_profile_is_suggested() -> None:
    """The error lists the known ones."""
    with pytest.raises(ConfigError, match=r"unknown profile 'opena' \(did you mean 'openai'\?\)"):
        load_profile("opena")


def test_a_bad_profile_lists_every_problem() -> None:
    """Profiles are checked as configs are."""
    with pytest.raises(ConfigError) as caught:
        parse_profile(
            "bad",
            {
                "titel": "x",
                "capabilities": {"chat": 1, "prefil": "x"},
                "models": [{"prediction": True}],
                "facts": [{"fields": ["scroe"], "kind": "guess", "source": "x", "checked": "now"}],
            },
        )
    assert len(caught.value.problems) == 7


def test_capability_names_are_the_tables_keys() -> None:
    """Every capability has a default that means unknown, absent or the cautious choice."""
    defaults = Capabilities()
    for field in fields(Capabilities):
        value = getattr(defaults, field.name)
        if field.name == "prediction_without":
            assert set(value) < set(PREDICTION_CONFLICTS)
            continue
        assert value in (None, (), 1, True, "max_tokens", "choices", "seed"), field.name


@pytest.mark.parametrize(
    ("url", "own"),
    [
        ("https://api.deepseek.com/anything", True),
        ("HTTPS://API.DEEPSEEK.COM", True),
        ("https://api.deepseek.com:443", True),
        ("https://api.deepseek.com:444", False),
        ("http://api.deepseek.com", False),
        ("https://deepseek.com", False),
        ("https://api.deepseek.com.evil.example", False),
        ("https://api.deepseek.com@evil.example", False),
        ("nonsense", False),
        ("http://[", False),
    ],
)
def test_a_profile_knows_its_own_address(url: str, own: bool) -> None:
    """Scheme, host and port must all be the provider's."""
    profile: Profile = load_profile("deepseek")
    assert profile.owns(url) is own
