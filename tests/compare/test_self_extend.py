"""Weft groups a long text as llama.cpp's tool did in 2024."""

import pytest

from tests.compare.self_extend import SETTINGS, TOLERANCE, kept, looked_up


@pytest.mark.parametrize("name", SETTINGS)
async def test_a_text_of_llama_cpps_tool_beyond_the_trained_length_is_what_weft_would_write(name: str) -> None:
    drawn = await looked_up(kept()[name], SETTINGS[name])
    assert len(drawn) == SETTINGS[name].n_predict
    assert [token for token in drawn if token.shortfall > TOLERANCE] == []
    # Two builds do not round alike, but seldom does that matter.
    assert sum(token.shortfall == 0 for token in drawn) > 0.97 * len(drawn)
