"""Ollama's dialect: `/api/generate`, `/api/chat` and their like."""
