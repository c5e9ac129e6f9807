"""Locates the images and audio in prompts and messages of a body, without decoding them."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from weft import InvalidRequestError
from weft.chat.conversation import ChatMessage, ContentPart
from weft.chat.messages import media_parts
from weft.fields.excerpt import excerpt
from weft.fields.validation import message_with_path
from weft.server.media.files import MAX_FILES, MEDIA_MARKER, MediaFile, MediaPrompt
from weft.server.request_fields.fields import Prompt, TextPrompt

_IMAGE = re.compile(r"\[img-([0-9]{1,9})\]")
"""Placeholder of an image in 2024, with its id."""


class _Image(msgspec.Struct):
    """An entry of `image_data`."""

    data: str
    id: int


def marked(prompt: TextPrompt) -> MediaPrompt:
    """Returns a text with a file at each marker.

    Raises:
        InvalidRequestError: The numbers of files and markers differ.
    """
    data = prompt.multimodal_data or []
    # Counted first: splitting at half a million markers in a text of megabytes would block the event loop.
    n_markers = prompt.prompt_string.count(MEDIA_MARKER)
    if n_markers != len(data):
        message = f"prompt_string has {n_markers} markers {MEDIA_MARKER}, and multimodal_data has {len(data)} entries"
        raise InvalidRequestError("prompt", f"{message}; the numbers must be equal")
    texts = prompt.prompt_string.split(MEDIA_MARKER)
    pieces: list[str | MediaFile] = [texts[0]]
    for index, (source, text) in enumerate(zip(data, texts[1:], strict=True)):
        pieces += [MediaFile(source=source, param="prompt", location=f"multimodal_data[{index}]"), text]
    return MediaPrompt(_non_empty(pieces))


def with_images(prompt: Prompt | None, image_data: Any) -> MediaPrompt:  # noqa: ANN401 (any JSON)
    """Returns a text with an image at the marker of its id, as in 2024: `[img-12]`.

    Raises:
        InvalidRequestError: The prompt is not a single text, an image or a marker has no counterpart, or there are too many.
    """
    if not isinstance(prompt, str):
        raise InvalidRequestError("image_data", "image_data requires a prompt that is a string")
    try:
        images = msgspec.convert(image_data, list[_Image])
    except msgspec.ValidationError as error:
        raise InvalidRequestError("image_data", message_with_path(error, "image_data")) from None
    files = {
        image.id: MediaFile(source=image.data, param="image_data", location=f"image_data[{index}].data", kind="image")
        for index, image in enumerate(images)
    }
    if len(files) < len(images):
        raise InvalidRequestError("image_data", "image_data has several images with the same id")
    # Every second item is the id of a marker. The limit matters: a text of megabytes may contain a million markers.
    texts = _IMAGE.split(prompt, MAX_FILES + 1)
    marker_ids = [int(found) for found in texts[1::2]]
    if len(marker_ids) > MAX_FILES:
        message = f"the prompt has more than {MAX_FILES} image markers; at most {MAX_FILES} images are allowed"
        raise InvalidRequestError("image_data", message)
    if without_marker := files.keys() - set(marker_ids):
        raise InvalidRequestError(
            "image_data", f"the prompt has no marker [img-{min(without_marker)}] for the image with this id"
        )
    if without_image := set(marker_ids) - files.keys():
        raise InvalidRequestError(
            "image_data", f"image_data has no image for the marker [img-{min(without_image)}] of the prompt"
        )
    pieces: list[str | MediaFile] = [texts[0]]
    for number, text in zip(marker_ids, texts[2::2], strict=True):
        pieces += [files[number], text]
    return MediaPrompt(_non_empty(pieces))


def _non_empty(pieces: Sequence[str | MediaFile]) -> list[str | MediaFile]:
    """Returns the pieces without empty texts."""
    return [piece for piece in pieces if piece != ""]


def chat_files(messages: Sequence[ChatMessage] | None) -> list[MediaFile]:
    """Returns the images and audio of messages, in order, and removes their data, which may be most of a body.

    Raises:
        InvalidRequestError: A part lacks the data of its type.
    """
    return [_extract_file(location, part) for location, part in media_parts(messages or ())]


def _extract_file(location: str, part: ContentPart) -> MediaFile:
    picture, sound = part.image_url, part.input_audio
    part.image_url = part.input_audio = None
    match part.type:
        case "image_url":
            if picture is None or not picture.url:
                raise InvalidRequestError("messages", f"{location}.image_url.url must be given")
            location = f"{location}.image_url.url"
            return MediaFile(source=picture.url, param="messages", location=location, kind="image", may_be_address=True)
        case "input_audio":
            if sound is None or not sound.data:
                raise InvalidRequestError("messages", f"{location}.input_audio.data must be given")
            # As in OpenAI's API and llama-server.
            if sound.format not in ("wav", "mp3"):
                kind = f"{location}.input_audio.format is {excerpt(sound.format)}; it must be 'wav' or 'mp3'"
                raise InvalidRequestError("messages", kind)
            return MediaFile(source=sound.data, param="messages", location=f"{location}.input_audio.data", kind="audio")
        case _:
            kind = f"parts of type {excerpt(part.type)} are not supported, only text, image_url and input_audio"
            raise InvalidRequestError("messages", f"{location}: {kind}")
