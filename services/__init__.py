"""Nereid's services: each subfolder but ``core`` is one process."""
