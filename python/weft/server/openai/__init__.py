"""OpenAI's API: completions, chats, embeddings and models."""
