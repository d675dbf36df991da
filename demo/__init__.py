"""Builds the model repository that the quickstart serves."""
