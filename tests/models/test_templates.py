"""The embedded model's chat template, and everybody else's."""

from pathlib import Path

from headway import LLM, SamplingParams
from headway.models.loader import load_model
from headway.models.templates import template_for


def test_other_files_keep_their_own() -> None:
    assert template_for("00", "own") == "own"
    assert template_for("00", None) is None


def test_the_embedded_model_adds_no_system_message_of_its_own(smollm2_path: Path) -> None:
    template = load_model(smollm2_path).chat_template
    assert template is not None
    user = {"role": "user", "content": "Hi"}
    assert template.render([user]) == ("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    system = {"role": "system", "content": "Be brief."}
    assert template.render([system, user]).startswith("<|im_start|>system\nBe brief.<|im_end|>\n")


def test_the_embedded_model_knows_the_capital_of_france(smollm2_path: Path) -> None:
    with LLM(str(smollm2_path), kv_blocks=64, max_seqs=2) as llm:
        question = [{"role": "user", "content": "What is the capital of France?"}]
        result = llm.chat(question, SamplingParams(temperature=0, max_tokens=30))
    assert result.choices[0].text == "The capital of France is Paris."
