"""The Python backend: models written in Python, each instance a process of its own.

``host`` is the worker's side. ``model`` is the other one: it runs in the model's
process, whose interpreter may be another than the worker's, so it imports nothing
but the standard library (3.10), numpy and this package. What both sides share lies
here: ``frames``, ``messages``, ``shared_memory`` and ``datatypes``.
"""
