"""Owns the model repository, placement, settings and statistics."""
