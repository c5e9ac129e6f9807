"""Ollama's API: `/api/generate`, `/api/chat` and others."""
