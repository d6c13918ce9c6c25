"""Models by name: `located("owner/repo:Q4_K_M")` is the path of a file in the Hub's cache.

Importing this imports huggingface_hub (a tenth of a second), so whoever loads a file by its path should not.
"""

import warnings

with warnings.catch_warnings():
    # Of tqdm, in a notebook without widgets: huggingface_hub imports its bars, and none of them is shown here.
    warnings.filterwarnings("ignore", message="IProgress not found")
    from engine.hub.fetch import Found, blobs, fetch, find, located, named, read

__all__ = ["Found", "blobs", "fetch", "find", "located", "named", "read"]
