"""When Python's cyclic garbage collector is better left out."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Leave cyclic garbage where it is inside the block.

    What torch imports for its first DTensor makes hundreds of thousands of objects, all of which
    stay. Going through them again and again takes the collector about as long as the imports take.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
