"""OpenAI's dialect: completions, chats and models."""
