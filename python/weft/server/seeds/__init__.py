"""The dialects of servers that came before: single-request batching, where one request is one batch of completions."""
