"""``python -m specroute.cli``: the same as the ``specroute`` command."""

from specroute.cli import main

main()
