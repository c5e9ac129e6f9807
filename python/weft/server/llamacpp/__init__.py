"""llama-server's API: `/completion`, `/tokenize`, `/slots` and others."""
