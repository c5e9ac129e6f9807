"""Draft models change no bit of what is generated, and one that does not fit is rejected."""

import logging
from pathlib import Path

import msgspec
import pytest

import weft
from tests.engine.tiny_models import Kind, write_tiny_model
from tests.helpers import FixedDraftCosts, wait_until
from weft._native import MemoryPlan, Model, plan_memory
from weft.demo import DEMO_MODEL
from weft.engine_options import EngineOptions

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


NO_REPEATABLE_RESULTS = (
    "text could change in rare cases, since results depend on the batch here; "
    "--spec-type ngram-mod or speculation='on' drafts nevertheless"
)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"kernels": "llama.cpp"}, NO_REPEATABLE_RESULTS),
        ({"kernels": "weft", "speculation": "off"}, "it is turned off"),
        ({"kernels": "llama.cpp", "speculation": "on"}, None),
        ({"kernels": "weft"}, None),
    ],
    ids=["results depend on the batch", "off", "on where results depend on the batch", "repeatable results"],
)
async def test_auto_uses_a_draft_model_only_where_no_result_changes(
    options: EngineOptions, reason: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    config = weft.EngineConfig(draft_model=str(DEMO_MODEL), n_slots=2, n_ctx=1024, n_threads=1)
    async with weft.Engine(config=config, **options) as engine:
        assert engine.no_speculation_reason == reason
        assert engine.draft_type == (None if reason else "draft-simple")
    if reason is not None:
        await wait_until(lambda: f"the draft model {DEMO_MODEL} is not used: {reason}" in caplog.messages)


@pytest.mark.parametrize("kind", ["recurrent", "hybrid", "window"])
async def test_a_draft_model_is_not_used_where_rejected_tokens_cannot_be_removed(
    kind: Kind, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "model.gguf"
    write_tiny_model(kind, path)
    caplog.set_level(logging.WARNING)
    config = weft.EngineConfig(n_ctx=256, n_slots=2, n_threads=1, speculation="on", draft_model=str(DEMO_MODEL))
    assert plan_memory(Model.load_sizes(path, config), config).draft_bytes == 0
    async with weft.Engine(path, config=config) as engine:
        reason = str(engine.no_speculation_reason)
        assert reason.startswith("the model's cache cannot remove rejected tokens")
        assert engine.draft_type is None
    await wait_until(lambda: f"the draft model {DEMO_MODEL} is not used: {reason}" in caplog.messages)


PLANNED = weft.EngineConfig(kernels="weft", n_ctx=2048, n_slots=4)


def planned(config: weft.EngineConfig) -> MemoryPlan:
    return plan_memory(Model.load_sizes(DEMO_MODEL, config), config)


def test_a_draft_model_counts_in_the_plan_of_memory() -> None:
    def n_cache(plan: MemoryPlan) -> int:
        return sum(buffer.cache for buffer in plan.buffers)

    plain, drafting = planned(PLANNED), planned(msgspec.structs.replace(PLANNED, draft_model=str(DEMO_MODEL)))
    assert n_cache(drafting) == 2 * n_cache(plain)
    # A candidate is a token, a logit and a probability; a row has a logit for each of 2,048 tokens. One sequence id is spare.
    n_sequences = 4 + 64 + 1
    assert drafting.draft_bytes == n_sequences * 2048 * (12 + 4)
    assert plain.draft_bytes == 0


def test_a_draft_model_that_is_turned_off_counts_in_no_plan() -> None:
    config = msgspec.structs.replace(PLANNED, draft_model=str(DEMO_MODEL), speculation="off")
    assert planned(config).draft_bytes == 0


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
