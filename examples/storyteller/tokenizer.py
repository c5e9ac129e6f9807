"""The storyteller's tokenizer: SentencePiece BPE with byte fallback, so that it encodes any UTF-8 text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sentencepiece

from examples.storyteller.document import ChatDocument, Document, StoryDocument

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable
    from pathlib import Path

VOCABULARY = 2048
IM_START, IM_END = "<|im_start|>", "<|im_end|>"
FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE = "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"
SPECIAL = [IM_START, IM_END, FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE]

INFILL_SHARE = 0.12
"""Of the stories: shown as a prefix, a suffix and the middle that is missing."""
TRANSCRIPT_SHARE = 0.15
"""Of the chats: shown as plain `Human:` and `Assistant:` lines, which prompts without a template use."""


def train(documents: Iterable[Document], model_file: Path) -> None:
    """Learns the pieces from the documents and writes them to `model_file`, whose name ends in `.model`."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(line for document in documents for line in document.plain().split("\n")),
        model_prefix=str(model_file.with_suffix("")),
        vocab_size=VOCABULARY,
        model_type="bpe",
        byte_fallback=True,
        add_dummy_prefix=False,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        character_coverage=1.0,
        split_digits=True,
        user_defined_symbols=SPECIAL,
        unk_id=0,
        bos_id=1,
        eos_id=2,
        pad_id=-1,
    )


class Tokenizer:
    """Text and marks to token ids."""

    def __init__(self, model_file: Path) -> None:
        """Reads what `train` wrote."""
        self.pieces = sentencepiece.SentencePieceProcessor(model_file=str(model_file))
        self.special = {mark: self.pieces.piece_to_id(mark) for mark in SPECIAL}

    def tokens(self, *parts: str) -> list[int]:
        """The tokens of the parts in turn; a part that is exactly a mark is that mark's one token."""
        ids: list[int] = []
        for part in parts:
            ids += [self.special[part]] if part in self.special else self.pieces.encode(part)
        return ids

    def encode(self, document: Document, rng: random.Random) -> list[int]:
        """A document as the model is shown it, with the marks that `rng` chooses, between BOS and EOS."""
        ids = self._story(document, rng) if isinstance(document, StoryDocument) else self._chat(document, rng)
        return [self.pieces.bos_id(), *ids, self.pieces.eos_id()]

    def _story(self, story: StoryDocument, rng: random.Random) -> list[int]:
        text = story.text
        if rng.random() >= INFILL_SHARE:
            return self.tokens(text)
        a, b = sorted(rng.sample(range(1, len(text) - 1), 2))
        return self.tokens(FIM_PREFIX, text[:a], FIM_SUFFIX, text[b:], FIM_MIDDLE, text[a:b])

    def _chat(self, chat: ChatDocument, rng: random.Random) -> list[int]:
        if rng.random() < TRANSCRIPT_SHARE:
            user = rng.choice(["User", "Human"])
            names = {"user": f"{user}: ", "assistant": "Assistant: ", "system": ""}
            return self.tokens("\n".join(names[role] + text for role, text in chat.turns), f"\n{user}:")
        ids: list[int] = []
        for role, text in chat.turns:
            ids += self.tokens(IM_START, f"{role}\n{text}", IM_END, "\n")
        return ids
