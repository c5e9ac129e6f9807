"""Weft: one prompt, many completions, over one shared KV cache."""

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from weft._native import Adapter as Adapter
    from weft._native import BranchStats as BranchStats
    from weft._native import CachedNode as CachedNode
    from weft._native import Compute as Compute
    from weft._native import EmbeddingStats as EmbeddingStats
    from weft._native import Histogram as Histogram
    from weft._native import HostCacheStats as HostCacheStats
    from weft._native import Limits as Limits
    from weft._native import Media as Media
    from weft._native import MediaStats as MediaStats
    from weft._native import MixedPrompt as MixedPrompt
    from weft._native import Modalities as Modalities
    from weft._native import Model as Model
    from weft._native import Prefix as Prefix
    from weft._native import RecentStep as RecentStep
    from weft._native import RequestHistograms as RequestHistograms
    from weft._native import SavedPrefix as SavedPrefix
    from weft._native import Slot as Slot
    from weft._native import Stats as Stats
    from weft._native import StepTimes as StepTimes
    from weft._native import Stream as Stream
    from weft.branch_stream import Branches as Branches
    from weft.branch_stream import BranchStream as BranchStream
    from weft.chat.completion import AssistantMessage as AssistantMessage
    from weft.chat.completion import ChatChoice as ChatChoice
    from weft.chat.completion import ChatCompletion as ChatCompletion
    from weft.chat.completion import ChoiceFinished as ChoiceFinished
    from weft.chat.completion import ToolCall as ToolCall
    from weft.chat.request import ChatOptions as ChatOptions
    from weft.chat.request import TemplateOptions as TemplateOptions
    from weft.chat.stream import ChatDelta as ChatDelta
    from weft.chat.stream import ChatStream as ChatStream
    from weft.chat.stream import ContentDelta as ContentDelta
    from weft.chat.stream import ReasoningDelta as ReasoningDelta
    from weft.chat.stream import ToolCallDelta as ToolCallDelta
    from weft.chat.stream import ToolCallStart as ToolCallStart
    from weft.completion import Choice as Choice
    from weft.completion import Completion as Completion
    from weft.config import EngineConfig as EngineConfig
    from weft.demo import DEMO_MODEL as DEMO_MODEL
    from weft.embedding import Embeddings as Embeddings
    from weft.embedding import Ranking as Ranking
    from weft.engine import Engine as Engine
    from weft.errors import AnswerTooLargeError as AnswerTooLargeError
    from weft.errors import ContextOverflowError as ContextOverflowError
    from weft.errors import DecodeError as DecodeError
    from weft.errors import DriverMissingError as DriverMissingError
    from weft.errors import EngineStoppedError as EngineStoppedError
    from weft.errors import ForkedProcessError as ForkedProcessError
    from weft.errors import InvalidConfigError as InvalidConfigError
    from weft.errors import InvalidRequestError as InvalidRequestError
    from weft.errors import ModelLoadError as ModelLoadError
    from weft.errors import NodeDroppedError as NodeDroppedError
    from weft.errors import NotSupportedError as NotSupportedError
    from weft.errors import PinBudgetError as PinBudgetError
    from weft.errors import PrefixFileError as PrefixFileError
    from weft.errors import PrefixSaveError as PrefixSaveError
    from weft.errors import QueueFullError as QueueFullError
    from weft.errors import SlowConsumerError as SlowConsumerError
    from weft.errors import TreeFileError as TreeFileError
    from weft.errors import TreeFullError as TreeFullError
    from weft.errors import WeftError as WeftError
    from weft.errors import WorkCancelledError as WorkCancelledError
    from weft.events import CacheExplanation as CacheExplanation
    from weft.events import ComputedRange as ComputedRange
    from weft.events import EarlierRequest as EarlierRequest
    from weft.events import Event as Event
    from weft.events import Finished as Finished
    from weft.events import Logprob as Logprob
    from weft.events import Logprobs as Logprobs
    from weft.events import Progress as Progress
    from weft.events import PromptLogprobs as PromptLogprobs
    from weft.events import Token as Token
    from weft.events import Usage as Usage
    from weft.infill import InfillOptions as InfillOptions
    from weft.infill import Snippet as Snippet
    from weft.prefix import PrefixFile as PrefixFile
    from weft.request import BranchOptions as BranchOptions
    from weft.request import Request as Request
    from weft.request import RequestOptions as RequestOptions
    from weft.request.reasoning import GrammarTrigger as GrammarTrigger
    from weft.request.reasoning import ReasoningConfig as ReasoningConfig
    from weft.request.sampling import SamplingOptions as SamplingOptions
    from weft.request.sampling import SamplingParams as SamplingParams
    from weft.scoring import Score as Score
    from weft.scoring import ScoredToken as ScoredToken
    from weft.sync_engine import SyncEngine as SyncEngine
    from weft.sync_engine import SyncStream as SyncStream
    from weft.tree import Extension as Extension
    from weft.tree import Node as Node
    from weft.tree import Tree as Tree

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

__all__ = list(_HOME_OF)


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
