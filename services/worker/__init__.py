"""Executes models on one device."""
