"""llama-server's own dialect: `/completion`, `/tokenize`, `/slots` and their like."""
