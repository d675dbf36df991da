"""How a router tells a worker whose state a request goes on with: implicit state.

Each life of a sequence, from one START to the next or to its end, has a number of its
own on the stream to its instance. The router puts it behind each request, as one more
control tensor; the model never sees it.
"""

from typing import Final

NUMBER_INPUT: Final = "nereid_sequence"
"""UINT64, one value a row. 0: a row that fills a gap, whose state nobody keeps."""
