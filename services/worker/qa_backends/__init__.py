"""Triton's own test backends, under their names, so that its public tests run here.

Each does what the public C++ backend of that name does, in the worker itself: no
process, no copy of an input. A model of theirs has no file, only a config.pbtxt.
"""
