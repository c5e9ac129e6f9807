#!/usr/bin/env bash
# A chat in the terminal; an empty line ends it. Requires curl and jq. Start the server: python -m weft
set -euo pipefail

readonly url="${API_URL:-http://127.0.0.1:8080}"
answer=$(mktemp)
readonly answer
trap 'rm -f "$answer"' EXIT

# Prints the answer to a prompt as it is generated, or the error.
generate() {
    printf %s "$1" | jq --raw-input --slurp '{prompt: ., stop: ["\nHuman:"], n_predict: 128, temperature: 0.5, stream: true}' |
        curl --silent --show-error --fail-with-body --no-buffer --header "Content-Type: application/json" --data @- "$url/completion" |
        jq --raw-input --unbuffered --join-output '
            def fail: "\(.error.message)\n" | halt_error;
            if startswith("data: ") then .[6:] | fromjson | .content // fail
            elif startswith("{") then fromjson | fail
            else empty end'
}

# Each prompt repeats the whole chat: the server has its beginning in the cache, and computes only the rest.
chat="A chat between a human and a friendly assistant, who tells stories."
# The last line may lack its line break.
while printf '> ' && { IFS= read -r line || true; } && [ -n "$line" ]; do
    chat+=$'\n'"Human: $line"$'\n'"Assistant:"
    generate "$chat" | tee "$answer"
    chat+=$(<"$answer")
    echo
done
echo
