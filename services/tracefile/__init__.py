"""Reads trace files: the command ``nereid trace``."""
