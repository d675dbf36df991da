"""How hypothesis behaves in all suites.

A machine that is slow for a moment proves nothing about an example. The same code gets
the same examples, so that a change is judged by what it changes; to look for new ones:

    scripts/test unit --hypothesis-profile explore
"""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "explore",
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("same", settings.get_profile("explore"), derandomize=True)
settings.load_profile("same")
