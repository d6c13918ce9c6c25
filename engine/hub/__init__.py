"""Models by name: `located("owner/repo:Q4_K_M")` returns the path of a file in the Hub's cache.

Importing this imports huggingface_hub, which takes a tenth of a second; code that loads a file by its path should not.
"""

import warnings

with warnings.catch_warnings():
    # A warning of tqdm in a notebook without widgets: huggingface_hub imports its progress bars, but we show none.
    warnings.filterwarnings("ignore", message="IProgress not found")
    from engine.hub.cache import GENERATION, exactly
    from engine.hub.fetch import Found, blobs, fetch, find, located, named, projector, read
    from engine.hub.tokenizer_config import companions

__all__ = [
    "GENERATION",
    "Found",
    "blobs",
    "companions",
    "exactly",
    "fetch",
    "find",
    "located",
    "named",
    "projector",
    "read",
]
