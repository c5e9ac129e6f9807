#!/usr/bin/env bash
# A completion. Start the server: python -m weft
set -euo pipefail

curl --silent --show-error --fail-with-body \
    --request POST \
    --url "${API_URL:-http://127.0.0.1:8080}/completion" \
    --header "Content-Type: application/json" \
    --data '{"prompt": "Once upon a time, there was a fox who", "n_predict": 64}'
