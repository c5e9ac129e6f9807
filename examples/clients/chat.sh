#!/usr/bin/env bash
# A talk at a terminal, with curl and jq. An empty line ends it. The server: python -m weft
set -euo pipefail

readonly url="${API_URL:-http://127.0.0.1:8080}"
answer=$(mktemp)
readonly answer
trap 'rm -f "$answer"' EXIT

# Writes the answer to a prompt while it comes, or says why there is none.
continued() {
    printf %s "$1" | jq --raw-input --slurp '{prompt: ., stop: ["\nHuman:"], n_predict: 128, temperature: 0.5, stream: true}' |
        curl --silent --show-error --fail-with-body --no-buffer --header "Content-Type: application/json" --data @- "$url/completion" |
        jq --raw-input --unbuffered --join-output '
            def fail: "\(.error.message)\n" | halt_error;
            if startswith("data: ") then .[6:] | fromjson | .content // fail
            elif startswith("{") then fromjson | fail
            else empty end'
}

# All that was said stands before the next question: the server has computed it already, and finds it in its cache.
talk="A talk between a human and a friendly assistant, who tells stories."
# The last line may have no end.
while printf '> ' && { IFS= read -r line || true; } && [ -n "$line" ]; do
    talk+=$'\n'"Human: $line"$'\n'"Assistant:"
    continued "$talk" | tee "$answer"
    talk+=$(<"$answer")
    echo
done
echo
