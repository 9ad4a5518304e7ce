"""Keys of KV blocks: a chain of keyed SHA-256 over everything that a block's content depends on.

The key of a block covers the key of the block before it, so equal keys mean equal prefixes. The
first link covers the secret, the block size, the ``cache_salt`` and the adapter, each tagged and
length-prefixed: the same text in two fields never gives the same key.
"""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Sequence

import msgspec
import numpy as np

from xllm.core.utils.arrays import Int32Array

TOKEN_DTYPE = np.dtype("<i4")  # of token ids inside a key
_sha256 = hashlib.sha256
_DOMAIN = b"xllm.kv-prefix.v1"


class MediaSpan(msgspec.Struct, frozen=True):
    """Placeholder tokens ``start .. start+length`` whose embeddings come from ``digest``."""

    digest: bytes  # whole content hash of the item
    start: int
    length: int


class PrefixIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What, beside the token ids, must be equal for two prefixes to share blocks."""

    cache_salt: str | None = None
    adapter: str | None = None
    media: tuple[MediaSpan, ...] = ()  # by rising start
    private: int | None = None  # shares with nobody but the holder of this number


def _field(tag: bytes, value: bytes | None) -> bytes:
    """One unambiguous field: an absent value differs from an empty one."""
    if value is None:
        return tag + b"\x00"
    return tag + b"\x01" + len(value).to_bytes(8, "little") + value


def _root(secret: bytes, block_size: int, identity: PrefixIdentity) -> bytes:
    salt, adapter, private = identity.cache_salt, identity.adapter, identity.private
    fields = (
        _field(b"secret", secret),
        _field(b"block_size", block_size.to_bytes(8, "little")),
        _field(b"cache_salt", None if salt is None else salt.encode("utf-8", "surrogatepass")),
        _field(b"adapter", None if adapter is None else adapter.encode("utf-8", "surrogatepass")),
        _field(b"private", None if private is None else private.to_bytes(8, "little", signed=True)),
    )
    return _sha256(_DOMAIN + b"".join(fields)).digest()


class BlockKeys:
    """The keys of one sequence's blocks, computed once and in order.

    Args:
        identity: what the sequence may share with.
        block_sizes: the block sizes of the cache groups; one chain is kept per distinct size.
        secret: key of the hash; processes that share it agree on every block key.
    """

    __slots__ = ("_chains", "_identity", "_starts")

    def __init__(
        self, identity: PrefixIdentity, block_sizes: Sequence[int], secret: bytes = b""
    ) -> None:
        self._identity = identity
        self._starts = [span.start for span in identity.media]
        self._chains = {
            size: [_root(secret, size, identity)] for size in dict.fromkeys(block_sizes)
        }

    def copy(self) -> BlockKeys:
        """The same keys for a sequence with the same tokens so far."""
        twin = object.__new__(BlockKeys)
        twin._identity, twin._starts = self._identity, self._starts
        twin._chains = {size: chain.copy() for size, chain in self._chains.items()}
        return twin

    def starts_like(self, other: BlockKeys, num_tokens: int) -> bool:
        """Whether both sequences begin with the same ``num_tokens``, as far as their computed keys
        tell: with too few of them the answer is no."""
        size = next(iter(self._chains))
        mine, others = self._chains[size], other._chains[size]
        last = num_tokens // size
        return last < min(len(mine), len(others)) and mine[last] == others[last]

    def upto(self, num_blocks: int, block_size: int, token_ids: Int32Array) -> list[bytes]:
        """The chain for ``block_size``: entry ``i + 1`` is the key of block ``i``.

        Args:
            num_blocks: blocks whose keys are needed; the list may be longer.
            token_ids: tokens of the sequence, at least ``num_blocks * block_size``.
        """
        chain = self._chains[block_size]
        first = len(chain) - 1
        if first < num_blocks:
            tokens = token_ids[first * block_size : num_blocks * block_size]
            raw = np.ascontiguousarray(tokens, dtype=TOKEN_DTYPE).tobytes()
            stride = TOKEN_DTYPE.itemsize * block_size
            for index in range(first, num_blocks):
                at = (index - first) * stride
                block = raw[at : at + stride]
                if self._starts:
                    block += self._media_in(index * block_size, block_size)
                chain.append(_sha256(chain[index] + block).digest())
        return chain

    def _media_in(self, start: int, block_size: int) -> bytes:
        """Digests of the media items that reach into the block, with their offsets in it."""
        end = start + block_size
        last = bisect.bisect_left(self._starts, end)
        return b"".join(
            _field(b"media", span.digest) + (span.start - start).to_bytes(8, "little", signed=True)
            for span in self._identity.media[:last]
            if span.start + span.length > start
        )


def keys_at(
    sequences: Sequence[BlockKeys], indexes: Sequence[int], block_size: int, raw: bytes
) -> list[bytes]:
    """The key of one block of each sequence; those of the blocks before it are known.

    Args:
        indexes: (N,) index of the block in each sequence.
        raw: tokens of the N blocks as ``TOKEN_DTYPE`` bytes, one after the other.
    """
    stride = TOKEN_DTYPE.itemsize * block_size
    keys, at = [], 0
    for sequence, index in zip(sequences, indexes, strict=True):
        chain = sequence._chains[block_size]
        if len(chain) == index + 1:
            block = raw[at : at + stride]
            if sequence._starts:
                block += sequence._media_in(index * block_size, block_size)
            chain.append(_sha256(chain[index] + block).digest())
        keys.append(chain[index + 1])
        at += stride
    return keys
