"""What an engine tells of the prefixes that it holds."""

import pytest

import weft
from tests.helpers import prompt_of
from weft.ray.digest import BLOCK, MAX_SALT, block_hashes, digest_of, salt_of, unpack

KEY = b"a key"


async def test_a_digest_has_the_hashes_that_are_made_of_a_prompt(engine: weft.Engine) -> None:
    prompt = prompt_of(200, "digest")
    answer = await engine.complete(prompt, max_tokens=60, ignore_eos=True)
    digest = await digest_of(engine, KEY)
    # The last token that was drawn was never computed.
    text = [*prompt, *answer.choices[0].token_ids][:-1]
    expected = block_hashes(text, salt=salt_of(KEY))
    assert len(expected) == 259 // BLOCK
    held = unpack(digest.device) | unpack(digest.host)
    assert held >= set(expected)
    assert held.isdisjoint(block_hashes(prompt_of(200, "another"), salt=salt_of(KEY)))
    assert held.isdisjoint(block_hashes(text, salt=salt_of(b"another key")))
    assert held.isdisjoint(block_hashes(text, salt=salt_of(KEY, [(0, 1.0)])))


async def test_what_is_being_written_is_told_with_how_many_run(engine: weft.Engine) -> None:
    prompt = prompt_of(200, "digest of what runs")
    running = engine.stream(prompt, ignore_eos=True)
    await anext(running)
    digest = await digest_of(engine, KEY)
    assert set(block_hashes(prompt, salt=salt_of(KEY))) <= unpack(digest.device)
    assert (digest.n_running, digest.n_queued, digest.n_slots) == (1, 0, 4)
    assert 0 < digest.n_free_cells <= 8_192 - 200
    running.close()


async def test_a_digest_has_no_more_hashes_than_were_asked_for(engine: weft.Engine) -> None:
    await engine.complete(prompt_of(1_000, "a long prompt"), max_tokens=1)
    device, host = await engine.prefix_digest(KEY)
    n_all = len(device + host) // 8
    some_device, some_host = await engine.prefix_digest(KEY, n_max=8)
    n_some = len(some_device + some_host) // 8
    assert n_all >= 15
    assert 0 < n_some <= 8
    assert unpack(some_device) | unpack(some_host) <= unpack(device) | unpack(host)


async def test_a_long_key_is_refused(engine: weft.Engine) -> None:
    with pytest.raises(weft.InvalidRequestError, match="key has 65 bytes; it may have at most 64"):
        await engine.prefix_digest(bytes(MAX_SALT + 1))
    with pytest.raises(OverflowError):
        await engine.prefix_digest(KEY, n_max=-1)
