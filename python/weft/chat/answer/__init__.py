"""Parses the text that a model writes into content, reasoning and tool calls. Independent of API dialects and of the engine."""
