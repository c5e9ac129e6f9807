"""Response fields that all APIs share: llama-server's timings, probabilities, settings and full result."""
