"""Vega, Vega-Lite and vega-embed as one script for the page."""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
from importlib.metadata import version
from pathlib import Path

import platformdirs


@functools.cache
def vega_bundle() -> str:
    """Return the script. Building it takes seconds, so it is kept in the user's cache folder."""
    folder = Path(platformdirs.user_cache_dir("levelfield"))
    path = folder / f"vega-{version('vl-convert-python')}.js"
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return path.read_text("utf-8")
    import vl_convert

    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    with contextlib.suppress(OSError):  # without a cache, the next page takes as long
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=folder, delete=False) as file:
            file.write(bundle)
        os.replace(file.name, path)
    return bundle
