#!/usr/bin/env bash
# Embeddings of one text and of two, in OpenAI's format. Start the server: python -m weft
set -euo pipefail

for input in '"hello"' '["hello", "world"]'; do
    curl --silent --show-error --fail-with-body "${API_URL:-http://127.0.0.1:8080}/v1/embeddings" \
        --header "Content-Type: application/json" \
        --header "Authorization: Bearer no-key" \
        --data "{\"input\": $input, \"model\": \"any\", \"encoding_format\": \"float\"}"
    echo
done
