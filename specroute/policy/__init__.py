"""Policies: pure choices between plans. One file each; presets are data in ``policies/*.toml``."""
