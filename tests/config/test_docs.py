"""The pages on configuration and providers are current, and their examples are read."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specroute.cli import app
from specroute.config import parse
from specroute.config.values import DraftConfig, ModelConfig, ProviderConfig, Timeouts

DOCS = Path(__file__).resolve().parents[2] / "docs"
CONFIGURATION = (DOCS / "configuration.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```toml\n(.*?)```", CONFIGURATION, re.DOTALL)


def run(*args: str) -> str:
    result = CliRunner().invoke(app, list(args))
    assert result.exit_code == 0, result.output
    return result.output


def test_the_providers_page_is_current() -> None:
    """docs/providers.md is what the TOML says: run `make docs`."""
    assert run("providers", "--markdown") == (DOCS / "providers.md").read_text(encoding="utf-8")


def test_the_policy_table_is_current() -> None:
    """docs/configuration.md holds what `specroute policies --markdown` prints."""
    assert run("policies", "--markdown") in CONFIGURATION


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_is_a_valid_config(example: str) -> None:
    """Examples can be pasted."""
    environ = dict.fromkeys(("LAB_API_KEY", "OPENAI_API_KEY", "AZURE_OPENAI_API_KEY"), "k")
    parse(tomllib.loads(example), "example", environ, versioned=True)


def test_every_key_is_on_the_page() -> None:
    """A new field of the config needs a line in the docs."""
    internal = {"name", "api_key", "timeouts", "timeouts_set", "declared"}
    for kind in (ProviderConfig, DraftConfig, ModelConfig, Timeouts):
        for key in set(kind.__dataclass_fields__) - internal:
            assert re.search(rf"`(timeouts\.)?{key}`", CONFIGURATION), key
    assert len(EXAMPLES) >= 4


def test_the_commands_answer() -> None:
    """Version, one provider, JSON."""
    assert run("--version").startswith("specroute ")
    assert "return_tokens_as_token_ids" in run("providers", "vllm")
    assert '"name": "vllm"' in run("providers", "vllm", "--json")
    assert '"num_speculative_tokens": 4' in run("policies", "--json")


def test_errors_are_a_message_and_a_status(tmp_path: Path) -> None:
    """No traceback: the message on stderr, exit status 2."""
    command = [sys.executable, "-m", "specroute.cli", "config", "--file", str(tmp_path / "no.toml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("specroute: ")
    assert "no.toml: can't be read" in done.stderr
    assert "Traceback" not in done.stderr


def test_help_loads_nothing_heavy() -> None:
    """`specroute --help` imports neither models, nor prices, nor clients."""
    code = (
        "import sys, specroute.cli; print([m for m in ('torch', 'transformers', 'openai', "
        "'genai_prices', 'httpx2', 'starlette') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
