"""``specroute demo --page``: provisional text in a browser, on loopback only."""
