"""Weft: one prompt, many completions, over one shared KV cache."""

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from weft._native import (
        Adapter,
        BranchStats,
        CachedNode,
        Compute,
        EmbeddingStats,
        Histogram,
        HostCacheStats,
        Limits,
        Media,
        MediaStats,
        MixedPrompt,
        Modalities,
        Model,
        Prefix,
        RecentStep,
        RequestHistograms,
        SavedPrefix,
        Slot,
        Stats,
        StepTimes,
        Stream,
    )
    from weft.branch_stream import Branches, BranchStream
    from weft.chat.completion import AssistantMessage, ChatChoice, ChatCompletion, ChoiceFinished, ToolCall
    from weft.chat.request import ChatOptions, TemplateOptions
    from weft.chat.stream import ChatDelta, ChatStream, ContentDelta, ReasoningDelta, ToolCallDelta, ToolCallStart
    from weft.completion import Choice, Completion
    from weft.config import EngineConfig
    from weft.demo import DEMO_MODEL
    from weft.embedding import Embeddings, Ranking
    from weft.engine import Engine
    from weft.errors import (
        AnswerTooLargeError,
        ContextOverflowError,
        DecodeError,
        DriverMissingError,
        EngineStoppedError,
        ForkedProcessError,
        InvalidConfigError,
        InvalidRequestError,
        ModelLoadError,
        NodeDroppedError,
        NotSupportedError,
        PinBudgetError,
        PrefixFileError,
        PrefixSaveError,
        QueueFullError,
        SlowConsumerError,
        TreeFileError,
        TreeFullError,
        WeftError,
        WorkCancelledError,
    )
    from weft.events import (
        CacheExplanation,
        ComputedRange,
        EarlierRequest,
        Event,
        Finished,
        Logprob,
        Logprobs,
        Progress,
        PromptLogprobs,
        Token,
        Usage,
    )
    from weft.infill import InfillOptions, Snippet
    from weft.prefix import PrefixFile
    from weft.request import BranchOptions, Request, RequestOptions
    from weft.request.reasoning import GrammarTrigger, ReasoningConfig
    from weft.request.sampling import SamplingOptions, SamplingParams
    from weft.scoring import Score, ScoredToken
    from weft.sync_engine import SyncEngine, SyncStream
    from weft.tree import Extension, Node, Tree

__all__ = [
    "DEMO_MODEL",
    "Adapter",
    "AnswerTooLargeError",
    "AssistantMessage",
    "BranchOptions",
    "BranchStats",
    "BranchStream",
    "Branches",
    "CacheExplanation",
    "CachedNode",
    "ChatChoice",
    "ChatCompletion",
    "ChatDelta",
    "ChatOptions",
    "ChatStream",
    "Choice",
    "ChoiceFinished",
    "Completion",
    "Compute",
    "ComputedRange",
    "ContentDelta",
    "ContextOverflowError",
    "DecodeError",
    "DriverMissingError",
    "EarlierRequest",
    "EmbeddingStats",
    "Embeddings",
    "Engine",
    "EngineConfig",
    "EngineStoppedError",
    "Event",
    "Extension",
    "Finished",
    "ForkedProcessError",
    "GrammarTrigger",
    "Histogram",
    "HostCacheStats",
    "InfillOptions",
    "InvalidConfigError",
    "InvalidRequestError",
    "Limits",
    "Logprob",
    "Logprobs",
    "Media",
    "MediaStats",
    "MixedPrompt",
    "Modalities",
    "Model",
    "ModelLoadError",
    "Node",
    "NodeDroppedError",
    "NotSupportedError",
    "PinBudgetError",
    "Prefix",
    "PrefixFile",
    "PrefixFileError",
    "PrefixSaveError",
    "Progress",
    "PromptLogprobs",
    "QueueFullError",
    "Ranking",
    "ReasoningConfig",
    "ReasoningDelta",
    "RecentStep",
    "Request",
    "RequestHistograms",
    "RequestOptions",
    "SamplingOptions",
    "SamplingParams",
    "SavedPrefix",
    "Score",
    "ScoredToken",
    "Slot",
    "SlowConsumerError",
    "Snippet",
    "Stats",
    "StepTimes",
    "Stream",
    "SyncEngine",
    "SyncStream",
    "TemplateOptions",
    "Token",
    "ToolCall",
    "ToolCallDelta",
    "ToolCallStart",
    "Tree",
    "TreeFileError",
    "TreeFullError",
    "Usage",
    "WeftError",
    "WorkCancelledError",
]

_HOMES = {
    "weft._native": (
        "Adapter",
        "BranchStats",
        "CachedNode",
        "Compute",
        "Stream",
        "Limits",
        "Media",
        "MediaStats",
        "MixedPrompt",
        "Modalities",
        "Model",
        "Prefix",
        "Histogram",
        "RecentStep",
        "RequestHistograms",
        "SavedPrefix",
        "Slot",
        "Stats",
        "StepTimes",
        "HostCacheStats",
        "EmbeddingStats",
    ),
    "weft.completion": ("Choice", "Completion"),
    "weft.chat.completion": ("AssistantMessage", "ChatChoice", "ChatCompletion", "ChoiceFinished", "ToolCall"),
    "weft.chat.request": ("ChatOptions", "TemplateOptions"),
    "weft.chat.stream": ("ChatDelta", "ChatStream", "ContentDelta", "ReasoningDelta", "ToolCallDelta", "ToolCallStart"),
    "weft.config": ("EngineConfig",),
    "weft.demo": ("DEMO_MODEL",),
    "weft.embedding": ("Embeddings", "Ranking"),
    "weft.engine": ("Engine",),
    "weft.errors": (
        "AnswerTooLargeError",
        "ContextOverflowError",
        "DecodeError",
        "DriverMissingError",
        "EngineStoppedError",
        "ForkedProcessError",
        "InvalidConfigError",
        "InvalidRequestError",
        "ModelLoadError",
        "NodeDroppedError",
        "NotSupportedError",
        "PinBudgetError",
        "PrefixFileError",
        "PrefixSaveError",
        "QueueFullError",
        "SlowConsumerError",
        "TreeFileError",
        "TreeFullError",
        "WeftError",
        "WorkCancelledError",
    ),
    "weft.events": (
        "CacheExplanation",
        "ComputedRange",
        "EarlierRequest",
        "Event",
        "Finished",
        "Logprob",
        "Logprobs",
        "Progress",
        "PromptLogprobs",
        "Token",
        "Usage",
    ),
    "weft.infill": ("InfillOptions", "Snippet"),
    "weft.prefix": ("PrefixFile",),
    "weft.branch_stream": ("BranchStream", "Branches"),
    "weft.request": ("BranchOptions", "Request", "RequestOptions"),
    "weft.scoring": ("Score", "ScoredToken"),
    "weft.request.reasoning": ("GrammarTrigger", "ReasoningConfig"),
    "weft.request.sampling": ("SamplingOptions", "SamplingParams"),
    "weft.sync_engine": ("SyncEngine", "SyncStream"),
    "weft.tree": ("Extension", "Node", "Tree"),
}
"""Names that each module defines. A module is imported when one of its names is first used: `python -m weft` imports this package
in every process, and processes that only print a version or watch the server need nothing of the engine."""

_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


# Type checkers read the imports above, and report names that are not among them.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Returns a public name, importing its module on first use."""
        if (home := _HOME_OF.get(name)) is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
        try:
            module = import_module(home)
        except ImportError as error:
            from weft.installed.driver import missing_driver  # noqa: PLC0415 (needed only where an import fails)

            if (driver := missing_driver()) is not None:
                raise driver from error
            raise
        # Later look-ups find the global without a call.
        value = globals()[name] = getattr(module, name)
        return value


def __dir__() -> list[str]:
    """Returns all names of the package, imported or not."""
    return sorted({*globals(), *__all__})
