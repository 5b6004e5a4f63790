"""Policies in virtual time: worlds, runs, peers and the best plan in hindsight. One file each.

The policies and the measurements here are the very objects that a client uses; only servers,
drafters and the clock are made up, or read from a recorded trace.
"""
