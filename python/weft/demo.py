"""The model that ships with the package."""

from pathlib import Path

__all__ = ["DEMO_MODEL"]

DEMO_MODEL = str(Path(__file__).parent / "models" / "storyteller-q8_0.gguf")
"""Path of the demo model: small enough to load immediately, trained for short stories."""
