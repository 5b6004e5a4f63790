"""Where openai's two clients are taken over, and the loops and threads that this takes.

``drop_in`` is what both clients share, ``seam`` what they send with, ``client_config`` which config
one has, ``stream_decoder`` and ``provisional_stream`` how streams are read, ``objects`` how the
JSON becomes openai's objects; ``per_loop``, ``loop_thread`` and ``threaded`` bring loops and
threads together.
"""
