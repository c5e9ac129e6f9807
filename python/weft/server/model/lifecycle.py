"""The life cycle of the model: loaded at the start, unloaded while idle, and loaded again for the next request."""

import asyncio
import gc
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import Any

from weft import (
    ContextOverflowError,
    Engine,
    EngineStoppedError,
    InvalidConfigError,
    InvalidRequestError,
    PinBudgetError,
    Request,
    WeftError,
)
from weft._native import SavedPrefix
from weft.chat.pipeline import ChatPipeline
from weft.server.errors import StillLoadingError
from weft.server.executor import Executor, Purpose
from weft.server.model.idle_unloader import IdleUnloader
from weft.server.model.pins import Pins
from weft.server.model.system_prompt import CommonPrompt
from weft.serving.build import build_info
from weft.settings import Settings
from weft.settings.system_prompt import SystemPrompt

logger = logging.getLogger(__name__)

LIVENESS_S = 0.25
"""Liveness check interval, in seconds."""


class EngineState(StrEnum):
    """State of the engine since the server's start, with the names of llama-srb-api."""

    INIT = "INIT"
    """Loading has not begun, or the model is being downloaded."""
    LOADING = "LOADING"
    READY = "READY"
    """The model is loaded, all slots are idle, and no embeddings are being computed."""
    RUNNING = "RUNNING"
    DEAD = "DEAD"
    """The model could not be loaded, or the engine has died."""


class Lifecycle:
    """Loads, unloads and reloads the model and its chat template, cache, pins and system prompt."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        executor: Executor,
        pins: Pins,
        common_prompt: CommonPrompt,
        *,
        make_chat: Callable[[], ChatPipeline],
        on_unload: Callable[[], object],
    ) -> None:
        """Creates the life cycle of an engine that is not running yet.

        Args:
            engine: The engine.
            settings: The server's settings.
            executor: Worker threads.
            pins: Pinned prefixes, which are pinned again after reloading.
            common_prompt: System prompt, computed at the start.
            make_chat: Creates the chat pipeline of the loaded model.
            on_unload: Called before the model is unloaded.
        """
        self._engine = engine
        self._settings = settings
        self._executor = executor
        self._pins = pins
        self._common_prompt = common_prompt
        self._make_chat = make_chat
        self._on_unload = on_unload
        self.chat = make_chat()
        """Chat pipeline of the loaded model."""
        self.loading: Mapping[str, Any] = {}
        """Progress of loading the model, reported with the error 503."""
        self.sleep = IdleUnloader(settings.sleep_idle_s, unload=self._unload, reload=self._reload)
        self._cache_exports: list[SavedPrefix] = []
        """Cache contents outside the device, while the model is unloaded."""
        self._is_started = False
        self._is_ready = False
        self._is_stopping = False
        self._failure: Exception | None = None

    async def start(self, loading: Awaitable[None] | None = None) -> None:
        """Loads the model. Until it returns, requests are refused with [`StillLoadingError`].

        Args:
            loading: The awaitable that `engine.start()` returned, if it was called already.

        Raises:
            ModelLoadError: The file is not a supported model.
            InvalidConfigError: A setting does not fit the model.
            RuntimeError: The engine was started before.
        """
        self._is_started = True
        try:
            await (loading or self._engine.start())
            self.chat.check_settings()
            await self._check_defaults()
            if self._settings.restore_prompt is not None:
                await self._engine.load_prefix(self._settings.restore_prompt)
            if (given := self._settings.system_prompt) is not None:
                await self._compute_system_prompt(given)
        except Exception as error:
            self._failure = error
            if not isinstance(error, WeftError):
                logger.exception("the engine cannot be started")
            raise
        self._is_ready = True
        self.sleep.start()
        self._executor.start(Purpose.PROMPT, self._compile)
        self._executor.start(Purpose.PROMPT, build_info)

    async def stop(self) -> None:
        """Stops the engine. Every open stream ends with an error."""
        self._is_stopping = True
        self.sleep.stop()
        await self._engine.close()

    async def wait_until_dead(self) -> None:
        """Returns once the started engine has stopped without a call of `stop`."""
        while self._is_stopping or self._is_alive:  # noqa: ASYNC110 (a dying thread cannot set an event)
            await asyncio.sleep(LIVENESS_S)

    def refusal(self) -> Exception | None:
        """Returns the error for every request while the engine is not available, else None.

        The engine may be loading, may have failed to load, or may have stopped.
        """
        if self._failure is not None:
            return self._failure
        if not self._is_ready:
            return StillLoadingError(self.loading)
        return None if self._is_alive and not self._is_stopping else EngineStoppedError()

    @property
    def state(self) -> EngineState:
        """State of the engine; READY also while it is running requests."""
        if self._failure is not None or (self._is_ready and not self._is_alive):
            return EngineState.DEAD
        if not self._is_ready:
            return EngineState.LOADING if self._is_started and self._engine.has_files else EngineState.INIT
        return EngineState.READY

    @property
    def makes_only_embeddings(self) -> bool:
        """True if the model or the settings permit no completions."""
        return self._engine.model.is_encoder or self._settings.embeddings or self._settings.reranking

    @property
    def _is_alive(self) -> bool:
        """True if the engine is running, or can be woken by a request."""
        if self._engine.is_running:
            return True
        return not self.sleep.is_awake and (self.sleep.is_changing or self._engine.is_asleep)

    def _compile(self) -> None:
        """Compiles the chat template.

        Runs on a worker thread. Only chat requests and queries of chat capabilities wait for it.
        """
        try:
            self.chat.compile()
        except EngineStoppedError:
            pass  # The template is no longer needed.
        except Exception:
            logger.exception("the chat template cannot be compiled")

    async def _check_defaults(self) -> None:
        """Validates default constraints and biases at startup.

        The first request would otherwise report the error, although its client is not at fault.
        """
        settings = self._settings
        grammar, json_schema, logit_bias = settings.grammar, settings.json_schema, settings.sampling.logit_bias
        if self.makes_only_embeddings or not (grammar or json_schema or logit_bias):
            return
        # A prompt of this length is refused after the request's other fields were validated.
        too_long = [0] * self._engine.limits.n_ctx_slot
        request = Request(prompt=too_long, grammar=grammar, json_schema=json_schema, logit_bias=logit_bias)
        try:
            await self._executor.run_in_thread(Purpose.PROMPT, 0, self._engine.stream, request)
        except ContextOverflowError:
            pass
        except InvalidRequestError as error:
            raise InvalidConfigError(error.param, error.message) from None

    async def _compute_system_prompt(self, system_prompt: SystemPrompt) -> None:
        """Computes the system prompt of the settings."""
        try:
            async with self._common_prompt.changed(system_prompt):
                pass
        except (ContextOverflowError, PinBudgetError) as error:
            raise InvalidConfigError("system_prompt", str(error)) from None

    async def _unload(self, is_needed: Callable[[], bool]) -> bool:
        """Unloads the model. Returns False if a request arrived before unloading began."""
        await self._pins.save_pinned()
        cache_exports = await self._engine.export_cache(should_continue=lambda: not is_needed())
        if is_needed():
            return False
        self._on_unload()
        logger.info("no request for %g s: unloading the model; the next request loads it again", self.sleep.timeout_s)
        await self._engine.sleep()
        # Not earlier: if the model stays loaded, its cache stays valid.
        self._cache_exports = cache_exports
        # Tracebacks form reference cycles that may hold the model. No request is waiting at this time.
        gc.collect()
        return True

    async def _reload(self) -> None:
        """Reloads the model and restores the state around it. On failure the model stays unloaded."""
        began = time.monotonic()
        try:
            await self._restore_state()
        except EngineStoppedError:
            raise
        except Exception as error:
            logger.error("cannot load the model again: %s", error)
            if self._engine.is_running:
                await self._engine.sleep()
            raise
        logger.info("loaded the model again in %.1f s", time.monotonic() - began)

    async def _restore_state(self) -> None:
        if not self._engine.is_running:
            await self._engine.wake()
        # The file may have been replaced.
        self.chat = self._make_chat()
        self.chat.check_settings()
        self.chat.compile()
        await self._engine.import_cache(self._cache_exports)
        try:
            if self._settings.restore_prompt is not None:
                await self._engine.load_prefix(self._settings.restore_prompt)
        except EngineStoppedError:
            raise
        except (WeftError, OSError) as error:
            logger.warning("the saved prompt could not be restored: %s", error)
        await self._pins.pin_again()
        # Not earlier: a retry after a failure needs them.
        self._cache_exports = []
