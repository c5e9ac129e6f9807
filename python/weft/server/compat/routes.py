"""Routes that exist for compatibility only."""

from litestar.params import FromQuery, JSONBody

from weft.server.api import Api
from weft.server.compat import plain
from weft.server.compat.prompt_files import restore_or_save
from weft.server.compat.schemas import StreamBody
from weft.server.context import ContextDependency
from weft.server.errors import NOT_SUPPORTED
from weft.server.streaming import sse
from weft.server.streaming.responses import Answer, StreamedResponse
from weft.server.web_policy import require_trusted_sender

api = Api("other servers")


@api.route("POST", "/stream", summary="Stream plain text", errors=NOT_SUPPORTED)
async def stream(
    data: JSONBody[StreamBody],
    context: ContextDependency,
    format: FromQuery[str | None] = None,  # noqa: A002
) -> Answer[str]:
    """Continues a prompt as plain text: the prompt, then each token, one per line; with `format=ndjson`, JSON strings."""
    service = context.service
    content_type, write = plain.line_form(format)
    parsed = plain.submission(data, service.settings)
    if data.cache:
        require_trusted_sender("the field cache")
        await restore_or_save(service, data.cache, data.prompt or "")
    generation = await service.submit(parsed)
    headers = sse.HEADERS | {"content-type": content_type}
    form = plain.LineEncoder(data.prompt or "", write)
    return Answer(StreamedResponse(generation, form, None, headers=headers, failure=plain.failure))
