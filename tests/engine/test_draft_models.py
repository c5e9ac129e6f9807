"""Draft models change no bit of what is generated, and one that does not fit is rejected."""

from pathlib import Path

import pytest

import weft
from tests.engine.tiny_models import write_tiny_model
from tests.helpers import FixedDraftCosts
from weft._native import Model, plan_memory
from weft.demo import DEMO_MODEL

PROMPT = "Once upon a time, there was"


async def test_a_draft_model_changes_no_bit() -> None:
    """The model drafts for itself, so that its drafts are right where the likeliest token is sampled."""
    config = FixedDraftCosts(kernels="weft", n_slots=4, n_ctx=2048, kv_unified=True, n_threads=1)
    options: weft.RequestOptions = {"n": 3, "seed": 1, "max_tokens": 40, "logprobs": 2}
    async with weft.Engine(config=config, draft_model=DEMO_MODEL, draft_type_k="q8_0", max_draft=4) as engine:
        assert engine.no_speculation_reason is None
        drafted = await engine.complete(PROMPT, **options)
        of_model = engine.stats().speculation.sources["model"]
        assert 0 < of_model.n_accepted < of_model.n_drafted
        greedy = await engine.complete(PROMPT, temperature=0, max_tokens=40)
        of_greedy = engine.stats().speculation.sources["model"]
        assert of_greedy.n_accepted - of_model.n_accepted > 20
        assert len(greedy.choices[0].token_ids) == 40
    async with weft.Engine(config=config, speculation="off") as engine:
        plain = await engine.complete(PROMPT, **options)
    for found, expected in zip(drafted.choices, plain.choices, strict=True):
        assert (found.token_ids, found.logprobs, found.text) == (expected.token_ids, expected.logprobs, expected.text)


async def test_a_draft_model_counts_in_the_plan_of_memory() -> None:
    def n_cache(**options: str) -> int:
        config = weft.EngineConfig(n_ctx=2048, **options)  # type: ignore[arg-type]
        return sum(buffer.cache for buffer in plan_memory(Model.load_sizes(DEMO_MODEL, config), config).buffers)

    assert n_cache(draft_model=str(DEMO_MODEL)) == 2 * n_cache()


@pytest.mark.parametrize(
    ("options", "reason"),
    [({}, "its vocabulary differs from the model's"), ({"draft_type": "draft-eagle3"}, "the type requires eagle3")],
    ids=["another vocabulary", "another type"],
)
async def test_a_draft_model_that_does_not_fit_is_rejected(tmp_path: Path, options: dict[str, str], reason: str) -> None:
    path = tmp_path / "draft.gguf"
    write_tiny_model("attention", path)
    with pytest.raises(weft.InvalidConfigError, match=reason) as rejected:
        async with weft.Engine(draft_model=path, **options):  # type: ignore[arg-type]
            pass
    assert rejected.value.param == "draft_model"


async def test_a_type_without_a_file_needs_layers_in_the_models_own() -> None:
    with pytest.raises(weft.InvalidConfigError, match="MTP"):
        async with weft.Engine(draft_type="draft-mtp"):
            pass
