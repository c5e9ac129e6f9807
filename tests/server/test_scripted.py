"""The scripted engine answers as a real one where the server depends on the form of its answers."""

import msgspec

import weft
from tests.server.scripted import ScriptedEngine


def test_pieces_have_the_form_of_a_models_own(engine: weft.Engine) -> None:
    for model in (engine.model, ScriptedEngine().model):
        tokens = list(model.token_ids("a fox", add_special=False))
        pieces = msgspec.json.decode(b"[%s]" % model.pieces_json(tokens))
        assert [set(piece) for piece in pieces] == [{"id", "piece"}] * len(tokens)
        assert [piece["id"] for piece in pieces] == tokens
        assert "".join(piece["piece"] for piece in pieces).strip() == "a fox"
        assert model.pieces_json([]) == b""
