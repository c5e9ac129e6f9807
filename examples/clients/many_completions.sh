#!/usr/bin/env bash
# Eight completions of one prompt, streamed as events. Start the server: python -m weft --compat srb
set -euo pipefail

curl --silent --show-error --fail-with-body --no-buffer -X POST -H 'Content-type: application/json' \
    "${API_URL:-http://127.0.0.1:9090}/v1/completions" -d '{ "prompt": "Once upon a time," }'
