"""The deployment page's config is one, and its commands are there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from typer.testing import CliRunner

from specroute.cli import app
from specroute.config import parse

PAGE = (Path(__file__).parents[2] / "docs" / "deployment.md").read_text(encoding="utf-8")


def test_the_config_parses() -> None:
    """The fleet's draft and the shared store included."""
    store, fleet = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.S)
    config = parse(tomllib.loads(fleet + store), "docs/deployment.md", {})
    assert config.store.kind == "redis"
    assert config.drafts["fleet"].provider == "drafts"


def test_the_commands_options_exist() -> None:
    """Each option that the page names for `specroute serve`."""
    shown = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"})
    for option in set(re.findall(r"--(?:file|host|port|max-concurrent|drain)", PAGE)):
        assert option in shown.output


def test_a_public_address_without_a_key_is_refused(tmp_path: Path, monkeypatch) -> None:
    """Exit status 2 and a sentence, before anything listens."""
    import subprocess
    import sys

    file = tmp_path / "specroute.toml"
    file.write_text(
        'version = 1\n[providers.lab]\nprofile = "vllm"\nbase_url = "http://127.0.0.1:9/v1"\n'
    )
    command = [sys.executable, "-m", "specroute.cli", "serve", "-f", str(file), "--host", "0.0.0.0"]
    monkeypatch.delenv("SPECROUTE_PROXY_KEYS", raising=False)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "set SPECROUTE_PROXY_KEYS to one or more keys" in done.stderr
