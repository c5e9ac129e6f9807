"""What the branches of a chat say, part by part."""

from weft import Finished, Token, Usage
from weft.chat.answer.parts import PLAIN, Content
from weft.server.run.chat import Spoken


def token(index: int, text: str) -> Token:
    """A token of a branch."""
    return Token(index=index, token=7, text=text, slot=0, n_predicted=1)


def test_what_is_neither_thought_nor_call_is_content_and_the_rest_comes_at_the_end() -> None:
    usage = Usage(n_computed=1, n_cached=2, n_predicted=1, n_held=3, prompt_ms=1.0, predicted_ms=1.0)
    spoken = Spoken(PLAIN)
    assert spoken.read(token(0, "He")) == [Content("He")]
    assert spoken.read(token(1, "")) == []
    finished = Finished(index=0, reason="end", text="y", usage=usage, slot=0)
    assert spoken.read(finished) == [Content("y")]
    assert not spoken.calls(finished)
