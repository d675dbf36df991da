"""What can go wrong in a benchmark."""


class BenchError(Exception):
    """The benchmark cannot go on; the message is for its user."""
