"""Hashes of blocks: the same everywhere and for ever, and nothing that tells of a text without its key."""

import struct

import pytest

from weft.ray.digest import BLOCK, MAX_BLOCKS, MAX_SALT, block_hashes, pack, salt_of, unpack

TEXT = list(range(150))
SALT = salt_of(b"a key")


def test_a_hash_is_the_same_everywhere_and_for_ever() -> None:
    # As rust/cache/tests/blocks.rs has them.
    assert block_hashes(TEXT, salt=SALT) == [0xF40614641030AB05, 0x6A65C5C18F141C0D]
    adapted = salt_of(b"a key", [(3, 0.5), (1, 2.0), (2, 0.0)])
    assert block_hashes(TEXT, salt=adapted) == [0xE7CBCFFABBD781B6, 0x51852D46DED67793]


@pytest.mark.parametrize(("n_tokens", "n_blocks"), [(0, 0), (BLOCK - 1, 0), (BLOCK, 1), (BLOCK + 1, 1), (10 * BLOCK, 10)])
def test_only_whole_blocks_have_a_hash(n_tokens: int, n_blocks: int) -> None:
    hashes = block_hashes(range(n_tokens), salt=SALT)
    assert len(hashes) == len(set(hashes)) == n_blocks


def test_a_hash_names_all_before_it() -> None:
    one, other = list(range(300)), [1, *range(1, 300)]
    assert one[BLOCK:] == other[BLOCK:]
    assert set(block_hashes(one)).isdisjoint(block_hashes(other))
    assert block_hashes(one) == block_hashes([*one[:256], 9, 9])


def test_texts_of_two_keys_or_two_variants_have_no_hash_in_common() -> None:
    salts = [
        b"",
        SALT,
        salt_of(b"another"),
        salt_of(b"a key", [(0, 1.0)]),
        salt_of(b"a key", [(0, 0.5)]),
        salt_of(b"a key", [(1, 1.0)]),
    ]
    hashes = [block for salt in salts for block in block_hashes(TEXT, salt=salt)]
    assert len(set(hashes)) == 2 * len(salts)
    assert salt_of(b"a key", [(1, 0.0)]) == SALT


def test_what_is_hashed_of_a_text_is_bounded() -> None:
    assert len(block_hashes([1] * (MAX_BLOCKS + 5) * BLOCK)) == MAX_BLOCKS


def test_what_cannot_be_hashed_is_refused() -> None:
    with pytest.raises(ValueError, match="maximum key length"):
        block_hashes(TEXT, salt=bytes(MAX_SALT + 1))
    with pytest.raises(struct.error):
        block_hashes([2**31] * BLOCK)


def test_packed_hashes_are_sorted_and_come_back() -> None:
    hashes = block_hashes(range(2_000), salt=SALT)
    packed = pack([*hashes, hashes[0]])
    assert packed == b"".join(block.to_bytes(8, "little") for block in sorted(hashes))
    assert unpack(packed) == set(hashes)
    with pytest.raises(ValueError, match="bytes length not a multiple"):
        unpack(packed[1:])
