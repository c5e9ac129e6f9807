"""langchain's own standard tests of a chat model, of `langchain-openai` against the server: each of them is a feature."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langchain_tests.integration_tests import ChatModelIntegrationTests, EmbeddingsIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests

URL = sys.argv[1].rstrip("/") if __name__ == "__main__" else os.environ["WEFT_URL"]


class Ours:
    """What both suites are told of the model."""

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        """The class."""
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        """Where it is."""
        return {
            "base_url": f"{URL}/v1",
            "api_key": "none",
            "model": "weft",
            "stream_usage": True,
            "timeout": 60,
            "max_retries": 0,
        }

    @property
    def supports_image_inputs(self) -> bool:
        """Pictures are read."""
        return True

    @property
    def supports_json_mode(self) -> bool:
        """So is `json_object`."""
        return True


class TestUnit(Ours, ChatModelUnitTests):
    """What needs no server."""


class TestIntegration(Ours, ChatModelIntegrationTests):
    """What asks the server."""


class TestEmbeddings(EmbeddingsIntegrationTests):
    """The vectors."""

    @property
    def embeddings_class(self) -> type[OpenAIEmbeddings]:
        """The class."""
        return OpenAIEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        """Where it is, and that texts are sent as texts: their tokens would be those of another model."""
        return {"base_url": f"{URL}/v1", "api_key": "none", "model": "weft", "check_embedding_ctx_length": False}


class Printed:
    """Says PASS or FAIL of each test."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called by pytest: a test that is left out, or expected to fail, is no feature."""
        name = report.nodeid.split("::", 1)[-1]
        if report.failed:
            why = [line[1:].strip() for line in str(report.longrepr).splitlines() if line.startswith("E ")]
            print(f"FAIL {name}: {(why or [report.when])[0][:200]}", flush=True)
        elif report.passed and report.when == "call" and not hasattr(report, "wasxfail"):
            print(f"PASS {name}", flush=True)


# The first compares with a file of langchain's own repository, the second reads its pictures from the internet.
NOT_HERE = "not test_serdes and not test_image_inputs"

if __name__ == "__main__":
    os.environ["WEFT_URL"] = URL
    options = [
        "-c",
        os.devnull,
        "--noconftest",
        "--rootdir",
        str(Path(__file__).parent),
        "-p",
        "no:cacheprovider",
        "-p",
        "no:terminal",
    ]
    for scope in ("mode=auto", "default_fixture_loop_scope=session", "default_test_loop_scope=session"):
        options += ["-o", f"asyncio_{scope}"]
    sys.exit(pytest.main([*options, "-m", "not benchmark", "-k", NOT_HERE, __file__], plugins=[Printed()]))
