"""Speculating on a request: ``speculator`` from call to delivery, ``planning`` with what,
``opening`` a session, ``reckoning`` up what it took, ``learning`` from every call's end,
``scoring`` a whole draft; ``calls`` is what comes in.
"""
