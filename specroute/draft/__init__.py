"""Drafters: where proposed tokens come from. Each is one file behind the protocol in ``base``."""
