"""OpenAI's dialect: `/v1/completions` and `/v1/models`."""
