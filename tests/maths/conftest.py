"""Property tests give the same verdict on every run and on a slow machine."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "specroute", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("specroute")
