"""Workers that share a Redis learn as one: what one measures, the others plan by.

``names`` says who belongs together, ``telling`` makes messages of observations, ``hearing`` takes
them in, ``accounts`` keeps what may be risked on exploring together, ``server`` is the only Redis,
``worker`` the task that does it all beside the requests. Nothing here is on a request's way but
one append.
"""

from specroute.sharing.accounts import Accounts, Alone, Leave
from specroute.sharing.worker import Sharing, shared

__all__ = ["Accounts", "Alone", "Leave", "Sharing", "shared"]
