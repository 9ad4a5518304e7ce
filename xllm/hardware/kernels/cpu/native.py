"""Compiles the C++ kernels for this machine, once, and loads them.

The library is kept in the cache folder under a name that covers the sources, the flags, the
compiler and the processor. It links the OpenMP runtime that torch has loaded, so both share one
pool of threads.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from xllm.core.config.env import cache_dir
from xllm.core.observability.logging import get_logger
from xllm.hardware.processor import processor

logger = get_logger(__name__)

_SOURCES = Path(__file__).parent / "csrc"
_COMPILERS = ("g++", "c++", "clang++")
_FLAGS = (
    *("-std=c++17", "-O3", "-march=native", "-fopenmp", "-fPIC", "-fvisibility=hidden"),
    *("-ffp-contract=fast", "-fno-math-errno", "-Wno-psabi"),
)
_ENTRY_POINTS = (
    *("xllm_rms_norm", "xllm_act_and_mul", "xllm_qk_norm_rope_kv_write"),
    *("xllm_paged_attention", "xllm_linear", "xllm_choose_tokens"),
    *("xllm_expand_decode", "xllm_sample_tokens", "xllm_mask_logits"),
)
# These take a processor as long as all other files together, which are compiled as one: what they
# include costs more than they do.
_LARGE = ("attention", "linear", "gemm")  # the longest to compile first
_TIMEOUT_SECONDS = 300


class _Loader:
    """Builds in the background; whoever needs the library waits for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._library: ctypes.CDLL | None = None
        self._num_threads = 0

    def begin(self) -> None:
        """Start building, unless that has begun. Kernels run with as many threads as torch has now,
        also where torch is kept to one for a while, as by the loader of quantized files."""
        with self._lock:
            self._num_threads = torch.get_num_threads()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="build-kernels", daemon=True)
                self._thread.start()

    def get(self) -> ctypes.CDLL | None:
        """The library, or None where it cannot be had."""
        if self._thread is None:
            self.begin()
        assert self._thread is not None
        self._thread.join()
        if self._library is not None:
            self._library.xllm_set_num_threads(self._num_threads)
        return self._library

    def _run(self) -> None:
        try:
            self._library = load(build())
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            logger.warning(
                "CPU kernels could not be compiled, plain torch runs instead, several times "
                "slower (%s). On Debian and Ubuntu `apt install g++` helps.",
                str(error).strip() or type(error).__name__,
            )


_loader = _Loader()
begin = _loader.begin


def library() -> ctypes.CDLL | None:
    """The kernels, or None where there is no compiler."""
    return _loader.get()


@functools.cache
def compiler() -> str | None:
    """Path of the C++ compiler, or None."""
    return next((path for name in _COMPILERS if (path := shutil.which(name))), None)


def build(*defines: str) -> Path:
    """Path of the compiled library, compiling it if it is not in the cache.

    Args:
        defines: macros, such as ``XLLM_EMULATE``: tiles and bfloat16 dots in plain C++, so that
            tests run the code around those instructions on any machine.

    Raises:
        RuntimeError: no compiler, or it failed; the message holds its first lines.
        OSError: the cache folder cannot be written.
    """
    program = compiler()
    if program is None:
        raise RuntimeError(f"no C++ compiler found (looked for {', '.join(_COMPILERS)})")
    folder = cache_dir() / "kernels"
    flags = (*_FLAGS, *(f"-D{name}" for name in defines))
    path = folder / f"cpu-{_key(program, flags)}.so"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a second process waits for the first one's result
        if path.exists():
            return path
        logger.info("compiling the CPU kernels, once for this processor and compiler")
        with tempfile.TemporaryDirectory(prefix=".build-", dir=folder) as scratch:
            sources = _units(Path(scratch))
            objects = [str(Path(scratch) / f"{source.stem}.o") for source in sources]
            commands = [
                [program, *flags, "-c", str(source), "-o", target]
                for source, target in zip(sources, objects, strict=True)
            ]
            with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
                list(pool.map(_call, commands))
            built = str(Path(scratch) / path.name)
            runtime = _openmp_runtime()
            link = ["-fopenmp"] if runtime is None else ["-Wl,--no-as-needed", str(runtime)]
            _call([program, "-shared", *objects, *link, "-o", built])
            os.rename(built, path)
    return path


def load(path: Path) -> ctypes.CDLL:
    """A compiled library with its entry points declared."""
    found = ctypes.CDLL(str(path))
    for name in _ENTRY_POINTS:
        function = getattr(found, name)
        function.argtypes, function.restype = (ctypes.c_char_p,), None
    found.xllm_run.argtypes, found.xllm_run.restype = (ctypes.c_char_p, ctypes.c_int64), None
    for name in ("xllm_set_num_threads", "xllm_limit_engine"):
        function = getattr(found, name)
        function.argtypes, function.restype = (ctypes.c_int64,), None
    for name in ("xllm_num_threads", "xllm_engine"):
        function = getattr(found, name)
        function.argtypes, function.restype = (), ctypes.c_int64
    return found


def _units(scratch: Path) -> list[Path]:
    """The files to compile, the longest first, so that two processors end at about one time."""
    rest = scratch / "rest.cpp"
    small = [file for file in sorted(_SOURCES.glob("*.cpp")) if file.stem not in _LARGE]
    rest.write_text("".join(f'#include "{file}"\n' for file in small))
    first, *others = (_SOURCES / f"{name}.cpp" for name in _LARGE)
    return [first, rest, *others]


def _openmp_runtime() -> Path | None:
    """The OpenMP runtime that torch has loaded. Two of them would spin against each other."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = Path(line.split(maxsplit=5)[-1])
        if path.name.startswith(("libgomp", "libiomp5")):
            return path
    return None


def _key(program: str, flags: tuple[str, ...]) -> str:
    digest = hashlib.sha256(" ".join(flags).encode())
    for file in sorted(_SOURCES.iterdir()):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    version = subprocess.run([program, "--version"], capture_output=True, timeout=30, check=True)
    digest.update(version.stdout)
    digest.update(" ".join(sorted(processor().features)).encode() + processor().model.encode())
    return digest.hexdigest()[:24]


def _call(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS)
    if done.returncode:
        raise RuntimeError("\n".join(done.stderr.splitlines()[:8]))
