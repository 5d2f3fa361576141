"""How JAX starts on this machine's devices, and how much memory they have."""

from __future__ import annotations

import math
import os
import re
import warnings

import jax

from levelfield.environment import available_cores, cache_folder
from levelfield.errors import UsageError


def use_every_core() -> None:
    """Give JAX one CPU device per core, because slots on separate devices use the cores best.

    Has no effect if the user has chosen a number, or after JAX has started, which fixes its devices.
    """
    chosen = getattr(jax.config, "jax_num_cpu_devices", -1) >= 0
    if chosen or "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    cores = available_cores()
    try:
        jax.config.update("jax_num_cpu_devices", cores)
    except RuntimeError:
        if jax.default_backend() == "cpu" and (devices := jax.local_device_count()) < cores:
            warnings.warn(
                f"JAX has started with {devices} of {cores} cores, so training is slower than it could be; let "
                f"levelfield train before you use JAX, or set the environment variable JAX_NUM_CPU_DEVICES={cores}",
                stacklevel=2,
            )


def keep_programs() -> None:
    """Keep compiled programs in the cache, so that another run of a study starts training at once.

    Several processes may share the folder. An entry that cannot be read or written only costs the compilation.
    """
    folder = cache_folder()
    chosen = getattr(jax.config, "jax_compilation_cache_dir", None)  # the user may have set it for JAX
    if folder is None or chosen:
        return
    programs = folder / "programs"
    try:
        programs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if os.environ.get("LEVELFIELD_CACHE"):
            expected = "expected a folder that can be written, or 'off'"
            raise UsageError(f"LEVELFIELD_CACHE = {str(folder)!r}: {expected} ({error.strerror})") from None
        return
    jax.config.update("jax_compilation_cache_dir", str(programs))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache entry")


def check_accelerator() -> None:
    """Raise if JAX does not use this machine's GPU."""
    if jax.default_backend() == "cpu":
        raise UsageError("JAX does not use the GPU; install it with: pip install 'levelfield[cuda]'")


def device_memory() -> float:
    """Return the bytes of memory that each device has for itself; infinity if it does not say."""
    return (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit") or math.inf


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out, so that fewer slots may help.

    They do not help if a kernel needs more of its processor's own memory than there is.
    """
    text = str(error)
    return "RESOURCE_EXHAUSTED" in text and not re.search("(shared|tensor) memory", text, re.IGNORECASE)
