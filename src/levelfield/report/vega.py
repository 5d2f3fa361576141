"""Vega, Vega-Lite and vega-embed as one script for the page."""

from __future__ import annotations

import contextlib
import functools
from importlib.metadata import version
from pathlib import Path

import platformdirs

from levelfield.files import replacing


@functools.cache
def vega_bundle() -> str:
    """Return the script. Building it takes seconds, so it is kept in the user's cache folder."""
    folder = Path(platformdirs.user_cache_dir("levelfield"))
    path = folder / f"vega-{version('vl-convert-python')}.js"
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return path.read_text("utf-8")
    import vl_convert

    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    with contextlib.suppress(OSError), replacing(path) as temporary:  # without a cache, the next page takes as long
        temporary.write_text(bundle, "utf-8")
    return bundle
