"""OpenAI's responses and conversations: answers that are kept, and can be gone on with by their ids."""
