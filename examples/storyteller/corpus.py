"""Writes the text that the storyteller learns from: small stories, chats and a few facts, all from the words and plots here.

The same seed gives the same text.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

from examples.storyteller import story
from examples.storyteller.chat import chat
from examples.storyteller.document import ChatDocument, Document, StoryDocument

STORY_SHARE = 0.62


def document(rng: random.Random) -> Document:
    """One story or one chat."""
    if rng.random() < STORY_SHARE:
        return StoryDocument(story.on_a_page(rng))
    return ChatDocument(chat(rng))


def main() -> None:
    """Writes the corpus."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path, help="the file to write, one JSON object a line")
    parser.add_argument("--documents", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    with args.corpus.open("w", encoding="utf-8") as lines:
        for _ in range(args.documents):
            lines.write(document(rng).to_json() + "\n")


if __name__ == "__main__":
    main()
