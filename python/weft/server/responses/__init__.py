"""OpenAI's responses API: responses and conversations, stored in memory."""
