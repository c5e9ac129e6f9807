"""HTTP server for one engine: `create_app` returns an ASGI application.

A request's way through the modules, each step in a file of its own:

1. `gateway.py` applies what holds for every request, with or without a route: log line (`request_line.py`), timeouts of the
   client (`streaming/client_timeouts.py`), rules for web pages (`web_policy.py`, `cors.py`), path prefix, pages and files
   (`page.py`, `static.py`), state of the engine (`model/lifecycle.py`) and API key (`auth.py`).
2. Litestar finds the route, which an API's `routes.py` declares with `api.py`. Where `--sleep-idle-seconds` is set, `awake.py`
   loads the model first.
3. `json_request.py` reads the body into the struct of the API's `schemas.py`.
4. The API's decoder (`translate.py`, or the functions before the encoder) turns the struct into the fields that all APIs share
   (`request_fields/`: `ChatFields`, `CompletionFields`), and `request_fields/requests.py` turns these into a `Submission`.
5. `inference/chat.py` renders a chat with the library's pipeline (`weft.chat.pipeline`). `Service.submit` tokenizes
   (`inference/request_builder.py`), passes the requests to the engine, and returns a `Generation`, which reads their events.
6. The API's encoder (an `Encoder`, `streaming/encoder.py`) turns the events into chunks or a whole response, with the fields
   that APIs share (`response_fields/`). `streaming/responses.py` sends them.

An exception in any step is answered by `errors.py`, in the shape of the API to which the path belongs.

To add an API (a dialect), write a folder with `schemas.py`, a decoder, an `Encoder` and `routes.py`; `score_api` is the smallest
example, `openai` the usual one. Add its routes to `APIS` in `app.py`, and its shape of errors, if it has its own, to
`ErrorResponses` there; list the routes that any web page may use in `web_policy.py`; describe its fields in `field_texts.toml`
and its routes in `scripts/api_pages.toml`. APIs do not import each other.

A slow client is detected in three places, which `streaming/__init__.py` describes: in the engine, where the response does not
read its events; in `streaming/client_timeouts.py`, where the client does not read the response or sends its body too slowly; and
in `weft/serving/connections.py`, where the end of a response is not acknowledged.

Everything runs on the event loop's thread except for work that would block it. `executor.py` has threads, by purpose, for long
texts, templates, grammars and files: a long prompt is tokenized on the thread `prompt`, a short one on the event loop. The
engine's worker thread, in Rust, computes tokens. `model/` holds what belongs to the loaded model: its life cycle, pinned
prefixes and the system prompt.
"""

from weft.server.app import create_app

__all__ = ["create_app"]
