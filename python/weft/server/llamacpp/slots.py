"""`/slots`: state of the slots, and actions on them. No I/O here."""

import re
from typing import Any

import msgspec

from weft import InvalidRequestError
from weft import Slot as EngineSlot
from weft.fields.excerpt import excerpt
from weft.server.llamacpp import schemas
from weft.server.llamacpp.properties import default_settings
from weft.server.response_fields.result import Branches
from weft.server.response_fields.settings import GenerationSettings
from weft.server.service import Service
from weft.server.slot_files import SlotFiles

NO_SLOT = "no slot available"

ACTIONS = ("save", "restore", "erase")

NO_TASK = -1
"""`id_task` of an idle slot."""


def of_engine(service: Service) -> list[EngineSlot]:
    """Returns the engine's slots."""
    return service.engine.stats().slots


def slots(service: Service) -> list[schemas.Slot | schemas.FullSlot]:
    """Returns the state of each slot."""
    listed = of_engine(service)
    settings = default_settings(service)
    return [
        _idle(service, slot, settings) if slot.request_id is None else _busy(service, slot, slot.request_id) for slot in listed
    ]


def _about(service: Service, slot: EngineSlot, next_token: schemas.NextToken) -> dict[str, Any]:
    is_busy = slot.request_id is not None
    task = slot.request_id if is_busy else NO_TASK
    return {
        "id": slot.id,
        "speculative": service.engine.no_speculation_reason is None,
        "is_processing": is_busy,
        "state": int(is_busy),
        "id_task": task,
        "task_id": task,
        "n_prompt_tokens": slot.n_prompt if is_busy else 0,
        "n_prompt_tokens_processed": slot.n_computed if is_busy else 0,
        "n_prompt_tokens_cache": slot.n_cached if is_busy else 0,
        "next_token": [next_token],
    }


def _idle(service: Service, slot: EngineSlot, settings: GenerationSettings) -> schemas.FullSlot:
    next_token = schemas.NextToken(has_next_token=False, has_new_line=False, n_remain=-1, n_decoded=0)
    return schemas.FullSlot(**msgspec.structs.asdict(settings), **_about(service, slot, next_token), params=settings)


def _busy(service: Service, slot: EngineSlot, request_id: int) -> schemas.Slot | schemas.FullSlot:
    n_ctx, model = service.engine.limits.n_ctx_slot, service.model_name
    found = service.generation_of(request_id)
    index = slot.index or 0
    next_token = schemas.NextToken(
        has_next_token=True,
        has_new_line=found is not None and found[0].has_new_line(found[1], index),
        n_remain=-1 if slot.n_remaining is None else slot.n_remaining,
        n_decoded=slot.n_predicted,
    )
    about = _about(service, slot, next_token)
    if found is None:
        return schemas.Slot(n_ctx=n_ctx, model=model, **about)
    generation, prompt = found
    branches = Branches(generation, service.engine, model)
    settings = branches.settings(prompt, index)
    text = generation.texts[prompt].text(index) if service.exposes_texts else None
    return schemas.FullSlot(
        **msgspec.structs.asdict(settings),
        **about,
        params=settings,
        prompt=msgspec.UNSET if text is None else branches.prompt_text(prompt, index),
        generated=msgspec.UNSET if text is None else text,
    )


def health(service: Service, *, include_slots: bool, is_2024: bool) -> schemas.Health:
    """Returns the number of idle and busy slots. With `is_2024`, the status also reports if all are busy."""
    stats = service.snapshot(of_engine)
    n_busy = sum(slot.is_processing for slot in stats)
    return schemas.Health(
        status=NO_SLOT if is_2024 and n_busy == len(stats) else "ok",
        slots_idle=len(stats) - n_busy,
        slots_processing=n_busy,
        slots=service.snapshot(slots) if include_slots else msgspec.UNSET,
    )


def slot_number(id_slot: str, action: str | None) -> int:
    """Parses a call of `/slots/{id_slot}`, without checking that the slot exists."""
    if re.fullmatch("[0-9]{1,9}", id_slot) is None:
        raise InvalidRequestError("id_slot", f"{excerpt(id_slot)} is not a slot number")
    if action not in ACTIONS:
        raise InvalidRequestError("action", f"the action is {excerpt(action)}; it must be one of {', '.join(ACTIONS)}")
    return int(id_slot)


async def act(
    files: SlotFiles, slot: int, action: str | None, filename: str | None
) -> schemas.SlotSaved | schemas.SlotRestored | schemas.SlotErased:
    """Performs one of `ACTIONS` on a slot, and returns the response."""
    name = filename or ""
    try:
        match action:
            case "save":
                file = await files.save(slot, filename)
                return schemas.SlotSaved(slot, name, file.n_tokens, file.n_bytes, schemas.SaveTimings(file.ms))
            case "restore":
                file = await files.restore(slot, filename)
                return schemas.SlotRestored(slot, name, file.n_tokens, file.n_bytes, schemas.RestoreTimings(file.ms))
            case _:
                return schemas.SlotErased(slot, await files.erase(slot))
    except InvalidRequestError as error:
        raise InvalidRequestError("id_slot", error.message) if error.param == "slot" else error from None
