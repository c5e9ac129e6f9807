#!/usr/bin/env bash
# A completion as plain text: the prompt, then each token on a line. Start the server: python -m weft --compat stream
# `cache` is the number of the file that stores the computed prompt, in the folder of --slot-save-path, else in the user's cache folder.
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
