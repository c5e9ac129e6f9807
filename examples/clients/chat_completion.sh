#!/usr/bin/env bash
# A chat completion in OpenAI's format. Start the server: python -m weft
set -euo pipefail

curl --silent --show-error --fail-with-body "${API_URL:-http://127.0.0.1:8080}/v1/chat/completions" \
    --header "Content-Type: application/json" \
    --header "Authorization: Bearer no-key" \
    --data '{
        "model": "any",
        "messages": [
            {"role": "system", "content": "You tell stories for children."},
            {"role": "user", "content": "Tell me about an owl who could not sleep."}
        ],
        "max_tokens": 96
    }'
