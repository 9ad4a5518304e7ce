"""Keys of KV blocks: equal exactly when everything that the content depends on is equal."""

import subprocess
import sys

import numpy as np

from xllm.kv_cache.prefix import BlockKeys, MediaSpan, PrefixIdentity
from xllm.kv_cache.prefix.keys import TOKEN_DTYPE, keys_at


def key(tokens, block_size=4, secret=b"", **identity) -> bytes:
    """The key of the last full block."""
    keys = BlockKeys(PrefixIdentity(**identity), [block_size], secret)
    tokens = np.asarray(tokens, np.int32)
    return keys.upto(len(tokens) // block_size, block_size, tokens)[-1]


def test_a_key_covers_everything_before_the_block():
    assert key([1, 2, 3, 4, 5, 6, 7, 8]) == key([1, 2, 3, 4, 5, 6, 7, 8])
    assert key([0, 2, 3, 4, 5, 6, 7, 8]) != key([1, 2, 3, 4, 5, 6, 7, 8])
    assert key([5, 6, 7, 8]) != key([1, 2, 3, 4, 5, 6, 7, 8])


def test_salt_adapter_private_number_and_secret_are_domains_of_their_own():
    """KV-27."""
    tokens = [1, 2, 3, 4]
    keys = {
        key(tokens),
        key(tokens, cache_salt="X"),
        key(tokens, adapter="X"),
        key(tokens, cache_salt=""),
        key(tokens, cache_salt="X", adapter="X"),
        key(tokens, private=0),
        key(tokens, private=1),
        key(tokens, secret=b"X"),
        key(tokens, cache_salt="X\x00adapter"),
    }
    assert len(keys) == 9
    assert key([1, 2], 1) != key([1, 2], 2)


def test_the_whole_digest_and_place_of_an_image_count():
    """KV-28."""
    tokens = [9] * 8
    first, second = b"\x01" * 30 + b"\xaa\xbb", b"\x02" * 30 + b"\xaa\xbb"

    def with_image(digest, start, length=4):
        return key(tokens, media=(MediaSpan(digest, start, length),))

    keys = {
        key(tokens),
        with_image(first, 2),
        with_image(second, 2),
        with_image(first, 3),
    }
    assert len(keys) == 4
    # An image that begins after the block does not touch its key.
    assert key(tokens[:4], media=(MediaSpan(first, 4, 4),)) == key(tokens[:4])
    # One that only reaches into the second block leaves the first block's key alone.
    spans = (MediaSpan(first, 1, 6),)
    keys_in_both = BlockKeys(PrefixIdentity(media=spans), [4])
    chain = keys_in_both.upto(2, 4, np.array(tokens, np.int32))
    other = BlockKeys(PrefixIdentity(media=(MediaSpan(second, 1, 6),)), [4])
    assert chain[1] != other.upto(2, 4, np.array(tokens, np.int32))[1]


def test_no_collision_for_known_weak_pairs_and_random_blocks():
    """KV-29."""
    base = [100, 200, 300, 400]
    for index in range(3):
        twisted = list(base)
        twisted[index] += 31
        twisted[index + 1] -= 1
        assert key(base) != key(twisted)
    assert key([1, 1, 1, 1]) == key([True] * 4)  # one type on the wire: 32-bit integers
    blocks = np.random.default_rng(0).integers(0, 1 << 17, (100_000, 4)).astype(np.int32)
    blocks = np.unique(blocks, axis=0)
    keys = BlockKeys(PrefixIdentity(), [4])
    found = keys_at(
        [keys.copy() for _ in range(len(blocks))],
        [0] * len(blocks),
        4,
        blocks.astype(TOKEN_DTYPE).tobytes(),
    )
    assert len(set(found)) == len(blocks)
    assert all(len(one) == 32 for one in found[:10])


def test_two_processes_agree_on_a_key():
    """KV-29."""
    code = (
        "import numpy as np; from xllm.kv_cache.prefix import BlockKeys, PrefixIdentity;"
        "keys = BlockKeys(PrefixIdentity(cache_salt='s'), [4]);"
        "print(keys.upto(2, 4, np.arange(8, dtype=np.int32))[-1].hex())"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert printed.stdout.decode().strip() == key(range(8), cache_salt="s").hex()


def test_one_by_one_and_at_once_give_the_same_keys():
    tokens = np.arange(40, dtype=np.int32)
    whole = BlockKeys(PrefixIdentity(), [4]).upto(10, 4, tokens)
    keys = BlockKeys(PrefixIdentity(), [4])
    for index in range(10):
        raw = tokens[4 * index : 4 * index + 4].astype(TOKEN_DTYPE).tobytes()
        assert keys_at([keys], [index], 4, raw) == [whole[index + 1]]
    twin = keys.copy()
    twin.upto(10, 4, tokens)
    assert keys.upto(10, 4, tokens) == whole
