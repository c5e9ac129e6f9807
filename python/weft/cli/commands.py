"""Subcommands of `python -m weft`, with the settings and the options that each takes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from weft.settings import GROUPS
from weft.settings.flags import Flag
from weft.settings.values import number, one_of, whole

EXPORT_FORMATS = ("json", "markdown", "text", "loom", "mikupad")
"""Formats of exported documents; `weft.documents.formats` has them."""

OWNERS = (
    "OWNER is 'none' for documents that were made without keys, @FILE for the API key in a file, or the beginning of an owner"
    " that list shows."
)

LOADING = ("model", "context and slots", "positions", "compute", "threads")
"""Groups of settings that determine how a model is loaded and computed."""


@dataclass(frozen=True)
class Command:
    """A subcommand of `python -m weft`."""

    name: str
    summary: str
    """What it does, in a few words, for the list of commands."""
    about: str
    examples: tuple[tuple[str, str], ...]
    """Common flags with descriptions, which `--help` shows first."""
    groups: tuple[str, ...] | None = None
    """Groups of settings that the command supports; None is all."""
    settings: tuple[str, ...] = ()
    """More settings that the command supports."""
    options: Mapping[str, Flag] = field(default_factory=dict)
    """Options of this command only, by name."""
    function: str = ""
    """Runs it with the settings and the options, and returns the exit code or None: `module:function`, imported when needed.
    `serve` is started in `weft.cli.main`."""
    positional: str = "-m"
    """Flag whose value may be given without it; empty if there is none."""

    @property
    def program(self) -> str:
        """Command line that starts it, for messages."""
        return "python -m weft" if self.name == "serve" else f"python -m weft {self.name}"

    def setting_names(self) -> frozenset[str] | None:
        """Returns the settings that the command supports; None is all."""
        if self.groups is None:
            return None
        return frozenset(self.settings).union(*(GROUPS[group] for group in self.groups))


def _list_of(parse: Callable[[str], int]) -> Callable[[str], Sequence[int]]:
    return lambda given: tuple(parse(part.strip()) for part in given.split(","))


SERVE = Command(
    "serve",
    "serve a model over HTTP, the default",
    "Serves a GGUF model over HTTP: one prompt, many completions, one shared KV cache.",
    (
        ("-m model.gguf", "a local model, on port 8080"),
        ("-hf ggml-org/gemma-3-1b-it-GGUF", "a model of the Hugging Face hub"),
        ("-m model.gguf -c 16384 -np 4", "4 slots, 16,384 tokens of context"),
        ("--host 0.0.0.0 --port 8000 --api-key SECRET", "for other machines, with a key"),
        ("--config weft.toml", "all settings from a file"),
    ),
    positional="",
)
TUNE = Command(
    "tune",
    "measure and save the fastest settings of a model on this machine",
    "Measures, in about a minute, which settings compute a GGUF model fastest on this machine, and saves them for later starts.",
    (("-m model.gguf", "a local model"),),
    (),
    (
        *("model", "hf_repo", "hf_file", "hf_token", "model_url", "docker_repo", "offline", "n_gpu_layers", "use_mmap"),
        *("use_mlock", "direct_io", "numa", "repack", "type_k", "type_v", "kernels"),
    ),
    function="weft.cli.tune:tune",
)
CHAT = Command(
    "chat",
    "chat with a model, or with a server, in the terminal",
    "Chats with a model in the terminal. If the standard input is not a terminal, answers it as one message and exits. "
    "Type /help in a chat for its commands; Ctrl-C stops an answer.",
    (
        ("model.gguf", "a local model, in this process"),
        ("--url http://127.0.0.1:8080", "the model of a running server with OpenAI's API"),
        ('--system "Answer in French." < question.txt', "one answer, for scripts"),
    ),
    (*LOADING, "sampling (defaults of requests)", "chat"),
    ("verbosity",),
    {
        "url": Flag("--url URL", help="server to chat with, in place of a model in this process"),
        "key": Flag("--api-key KEY", env="LLAMA_API_KEY", help="API key of the server"),
        "served_model": Flag("--served-model NAME", help="model of the server (default: its first one)"),
        "system": Flag("-sys, --system TEXT", help="system message (default: none)"),
    },
    function="weft.cli.chat.command:chat",
)
BENCH = Command(
    "bench",
    "measure prefill and decode speed of a model for 1, 8 and 32 streams",
    "Measures prefill and decode in tokens per second, for several numbers of concurrent streams that have their own prompts or "
    "share one.",
    (("model.gguf", "a table for 1, 8 and 32 streams"), ("model.gguf --streams 1,4 --json", "other numbers of streams, as JSON")),
    LOADING,
    (),
    {
        "streams": Flag("--streams N,N", parse=_list_of(whole(1, 254)), help="numbers of concurrent streams (default: 1,8,32)"),
        "n_prompt": Flag("--prompt-tokens", parse=whole(1), help="tokens of each prompt (default: 512, or what fits)"),
        "n_decode": Flag("--decode-tokens", parse=whole(2), help="generated tokens of each stream (default: 64)"),
        "json": Flag(constants={"--json": True}, help="print JSON instead of a table"),
    },
    function="weft.cli.bench:bench",
)
PLAN = Command(
    "plan",
    "show the memory that a start would use, by part",
    "Shows the memory that a start with the same flags would use: weights, KV cache, compute buffers and host cache. Reads the "
    "metadata of the model only.",
    (
        ("model.gguf -np 8 -c 32768", "8 slots that share 32,768 tokens of context"),
        ("model.gguf -ctk q8_0 -ctv q8_0 --json", "a quantized KV cache, as JSON"),
    ),
    None,
    (),
    {"json": Flag(constants={"--json": True}, help="print JSON instead of a table")},
    function="weft.cli.plan:plan",
)
DOCUMENTS = Command(
    "documents",
    "list, move and export the documents of a server",
    "Lists the owners of documents or the documents of one, gives them to another API key, or exports them. Reads the file of "
    f"the documents; the server may be running. {OWNERS}",
    (
        ("list", "the owners of documents"),
        ("list --from none", "documents that were made without keys"),
        ("move --from @old-key --to @new-key", "after a key was replaced"),
        ("export --folder backup", "a file for each document"),
    ),
    (),
    ("documents_path",),
    {
        "action": Flag("--action NAME", parse=one_of("list", "move", "export"), help="list, move or export (default: list)"),
        "source": Flag("--from OWNER", help="owner whose documents are listed, moved or exported (default: all)"),
        "target": Flag("--to OWNER", help="new owner of moved documents"),
        "folder": Flag("--folder PATH", help="folder of exported files, which is created (default: the working directory)"),
        "name": Flag("--format NAME", parse=one_of(*EXPORT_FORMATS), help="format of exported files (default: json)"),
    },
    function="weft.cli.documents:documents",
    positional="--action",
)
TOP = Command(
    "top",
    "display the state of a running server",
    "Displays the state of a running server: slots, queue, cells, tokens per second, hit rate, and the most used prefixes. Rates "
    "require --metrics on the server. Prints plain text if the output is not a terminal. Ctrl-C ends it.",
    (("http://127.0.0.1:8080", "a server on this machine"), ("--once > state.txt", "one page, for scripts")),
    (),
    (),
    {
        "url": Flag("--url URL", help="URL of the server (default: http://127.0.0.1:8080)"),
        "key": Flag("--api-key KEY", env="LLAMA_API_KEY", help="API key of the server"),
        "interval_s": Flag("--interval S", parse=number(0.1, 3600), help="refresh interval in seconds (default: 1)"),
        "once": Flag(constants={"--once": True}, help="print one page after one interval, and exit"),
    },
    function="weft.cli.top.command:top",
    positional="--url",
)
COMMANDS: Mapping[str, Command] = {command.name: command for command in (SERVE, CHAT, BENCH, PLAN, TUNE, DOCUMENTS, TOP)}
