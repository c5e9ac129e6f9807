#!/usr/bin/env bash
# A text as plain lines: the prompt, then each token. The server: python -m weft --compat stream, where the number at `cache` keeps
# what was computed of the prompt in a file: of the folder that --slot-save-path names, else of the user's cache.
set -euo pipefail

curl --silent --show-error --fail-with-body --no-buffer "${API_URL:-http://127.0.0.1:8080}/stream" \
    --header "Content-Type: application/json" --data '{
        "num_predict": 64,
        "prompt": "Once upon a time",
        "n_batch": 16,
        "top_k": 50,
        "top_p": 0.9,
        "repeat_penalty": 1.5,
        "temp": 0.7,
        "cache": 42
    }'
