"""The sale day: more requests than a target can answer, with specroute and without it."""
