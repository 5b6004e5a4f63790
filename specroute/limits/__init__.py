"""Limits of a provider, a day's budget, and what one request may cost.

``estimate`` says what a call may come to, ``ceiling`` and ``purse`` keep one request's dollars,
``gate`` is the place that every call passes. What a window holds and where the sums are kept,
``store`` knows.
"""
