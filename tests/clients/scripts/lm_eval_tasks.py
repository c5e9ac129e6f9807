"""`lm-evaluation-harness`: a task of each of its kinds, made of a few questions that are written here."""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from report import feature, run, url

PROGRAM = Path(sys.executable).with_name("lm_eval")

QUESTIONS = [
    {"question": f"What comes after {n}?", "right": str(n + 1), "wrong": str(n + 5), "text": f"After {n} comes {n + 1}."}
    for n in range(6)
]

TASKS = {
    "generate_until": "doc_to_text: 'Question: {{question}} Answer:'\ndoc_to_target: '{{right}}'\n"
    "generation_kwargs: {until: ['Question:'], max_gen_toks: 12}\nmetric_list: [{metric: exact_match}]",
    "multiple_choice": "doc_to_text: 'Question: {{question}} Answer:'\ndoc_to_choice: ['{{right}}', '{{wrong}}']\n"
    "doc_to_target: 0\nmetric_list: [{metric: acc}]",
    "loglikelihood_rolling": "doc_to_text: ''\ndoc_to_target: '{{text}}'\nmetric_list: [{metric: word_perplexity}]",
}


def evaluated(kind: str, how: str, *flags: str, **arguments: object) -> dict[str, float]:
    """What the harness finds."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "questions.jsonl").write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
        data = f"dataset_path: json\ndataset_kwargs: {{data_files: {{test: {folder}/questions.jsonl}}}}\ntest_split: test\n"
        (folder / "tiny.yaml").write_text(f"task: tiny\n{data}output_type: {kind}\n{TASKS[kind]}\n")
        told = ",".join(f"{name}={value}" for name, value in arguments.items())
        command = [PROGRAM, "run", "--model", how, "--model_args", told, "--tasks", "tiny", "--include_path", name, *flags]
        ran = subprocess.run(
            [*command, "--output_path", f"{name}/out"], cwd=folder, capture_output=True, text=True, check=False, timeout=280
        )
        assert ran.returncode == 0, ran.stderr[-1500:]
        [results] = Path(name).glob("out/**/results_*.json")
        found = json.loads(results.read_text())["results"]["tiny"]
        return {key.partition(",")[0]: value for key, value in found.items() if isinstance(value, float)}


@feature("text completion")
def generation() -> None:
    found = evaluated(
        "generate_until",
        "local-completions",
        model="weft",
        base_url=f"{url()}/v1/completions",
        tokenizer_backend="None",
        num_concurrent=2,
    )
    assert 0 <= found["exact_match"] <= 1


@feature("chat")
def chat() -> None:
    where = {"model": "weft", "base_url": f"{url()}/v1/chat/completions", "tokenizer_backend": "None", "num_concurrent": 2}
    found = evaluated("generate_until", "local-chat-completions", "--apply_chat_template", **where)
    assert 0 <= found["exact_match"] <= 1


@feature("likelihoods")
def likelihoods() -> None:
    # Its own kind for llama.cpp's servers tells where a text ends by characters, and needs no tokenizer beside the server.
    found = evaluated("multiple_choice", "gguf", base_url=url())
    assert 0 <= found["acc"] <= 1


@feature("likelihoods of whole texts")
def perplexity() -> None:
    found = evaluated(
        "loglikelihood_rolling", "local-completions", model="weft", base_url=f"{url()}/v1/completions", tokenizer_backend="remote"
    )
    assert found["word_perplexity"] > 1


run()
