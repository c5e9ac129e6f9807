#!/usr/bin/env bash
# A question after a system prompt, which applies to all later requests too. Start the server: python -m weft --compat parallel
set -euo pipefail

curl --silent --show-error --fail-with-body --no-buffer -H 'Content-Type: application/json' \
    "${API_URL:-http://127.0.0.1:8080}/completion" -d @- <<'BODY'
{
    "system_prompt": "A chat between a curious human and an assistant, who gives helpful and polite answers.\n\nHuman: Hello\nAssistant: Hi, how may I help you?\nHuman:",
    "anti_prompt": "Human:",
    "assistant_name": "Assistant:",
    "prompt": " Who lives in the old oak?\nAssistant:",
    "temperature": 0.2,
    "n_predict": 64
}
BODY
