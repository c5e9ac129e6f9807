"""What our kernels compute, beside what llama.cpp's own do."""

import math
import random
from typing import Literal

import weft
from examples.storyteller import story

N_STORIES = 12
UNSEEN = 20_261_122
"""Of stories that the model has not learned from."""


async def perplexity(kernels: Literal["weft", "llama.cpp"]) -> float:
    """Of the demo model over unseen stories: e to the mean of what it did not expect."""
    rng = random.Random(UNSEEN)
    logprobs: list[float] = []
    async with weft.Engine(slots=2, kernels=kernels) as engine:
        for _ in range(N_STORIES):
            tokens = engine.tokenize(story.on_a_page(rng))
            completion = await engine.complete(tokens, max_tokens=0, prompt_logprobs=0)
            logprobs += [told.chosen.logprob for told in completion.prompt_logprobs if told is not None]
    assert len(logprobs) > 100 * N_STORIES
    return math.exp(-sum(logprobs) / len(logprobs))


async def test_unseen_stories_are_as_likely_as_by_llama_cpp() -> None:
    ours, theirs = await perplexity("weft"), await perplexity("llama.cpp")
    assert 1 < theirs < 5, "it knows such stories"
    assert abs(ours / theirs - 1) < 0.001
