#!/usr/bin/env bash
# A talk at a terminal, with curl and jq. An empty line ends it. The server: python -m weft
set -euo pipefail

readonly url="${API_URL:-http://127.0.0.1:8080}"

# Writes the answer to a prompt while it comes.
continued() {
    printf %s "$1" | jq --raw-input --slurp '{prompt: ., stop: ["\nHuman:"], n_predict: 128, temperature: 0.5, stream: true}' |
        curl --silent --show-error --fail --no-buffer --header "Content-Type: application/json" --data @- "$url/completion" |
        jq --raw-input --unbuffered --join-output 'select(startswith("data: ")) | .[6:] | fromjson | .content // error(.error.message)'
}

# All that was said stands before the next question: the server has computed it already, and finds it in its cache.
talk="A talk between a human and a friendly assistant, who tells stories."
while printf '> ' && IFS= read -r line && [ -n "$line" ]; do
    talk+=$'\n'"Human: $line"$'\n'"Assistant:"
    { answer=$(continued "$talk" | tee /dev/fd/3); } 3>&1
    talk+="$answer"
    echo
done
echo
