"""Targets: how a server's prompts are rendered, continued and scored, one dialect a file."""
