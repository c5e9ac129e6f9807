#!/usr/bin/env bash
# Eight continuations of one prompt, as events while they are written. The server: python -m weft --compat srb
set -euo pipefail

curl --silent --show-error --fail-with-body --no-buffer -X POST -H 'Content-type: application/json' \
    "${API_URL:-http://127.0.0.1:9090}/v1/completions" -d '{ "prompt": "Once upon a time," }'
