import json
import threading

import pytest

from vllm_slo.engine import resolve_model
from vllm_slo.engine.models import ASSUMED_VOCAB_SIZE
from vllm_slo.engine.shapes import SHAPES
from vllm_slo.errors import SloError


def read(model, name):
    from pathlib import Path

    return json.loads((Path(model.source) / name).read_text())


def test_llama_3_8b_has_the_real_dimensions(tmp_path):
    model = resolve_model("shape:llama-3-8b", cache_dir=tmp_path)
    config = read(model, "config.json")
    assert {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
        "rope_theta": 500000.0,
        "max_position_embeddings": 8192,
        "torch_dtype": "bfloat16",
    }.items() <= config.items()
    assert ("llama-3-8b", 128256, 8192, True, True) == (
        model.served_name,
        model.vocab_size,
        model.max_model_len,
        model.is_dummy,
        model.is_local,
    )


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_tokenizer_has_a_word_for_each_id_of_the_vocabulary(tmp_path, name):
    model = resolve_model(f"shape:{name}", cache_dir=tmp_path)
    vocabulary = read(model, "tokenizer.json")["model"]["vocab"]
    size = read(model, "config.json")["vocab_size"]
    assert list(range(size)) == sorted(vocabulary.values())
    assert size == model.vocab_size


def test_a_shape_is_made_once_and_never_seen_half_made(tmp_path):
    found = []
    threads = [
        threading.Thread(
            target=lambda: found.append(resolve_model("shape:tiny", cache_dir=tmp_path))
        )
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (folder,) = (tmp_path / "models").iterdir()
    assert [str(folder)] * 8 == [model.source for model in found]
    assert {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    } == {path.name for path in folder.iterdir()}


def test_a_folder_is_taken_as_it_is(tmp_path):
    folder = tmp_path / "My-Model"
    folder.mkdir()
    (folder / "config.json").write_text('{"vocab_size": 777, "max_position_embeddings": 99}')
    model = resolve_model(str(folder))
    assert (str(folder), "My-Model", 777, 99, False, True) == (
        model.source,
        model.served_name,
        model.vocab_size,
        model.max_model_len,
        model.is_dummy,
        model.is_local,
    )


def test_the_language_model_of_a_composed_one_counts(tmp_path):
    (tmp_path / "config.json").write_text('{"text_config": {"vocab_size": 5000}}')
    assert 5000 == resolve_model(str(tmp_path)).vocab_size


def test_a_hub_name_passes_through():
    model = resolve_model("meta-llama/Meta-Llama-3-8B")
    assert ("meta-llama/Meta-Llama-3-8B",) * 2 == (model.source, model.served_name)
    assert (ASSUMED_VOCAB_SIZE, False, False) == (model.vocab_size, model.is_dummy, model.is_local)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("shape:llama3-8b", "did you mean shape:llama-3-8b\\?\nthere are: shape:tiny"),
        ("shape:", "there is no such shape"),
        ("llama-3-8b", "did you mean shape:llama-3-8b"),
        ("./nowhere", "there is no such folder"),
        ("/a/b/c", "there is no such folder"),
        ("", "there is no such folder"),
    ],
)
def test_what_is_no_model_is_said_with_what_there_is(tmp_path, spec, message):
    with pytest.raises(SloError, match=message):
        resolve_model(spec, cache_dir=tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"vocab_size": "many"}'])
def test_a_folder_without_a_usable_configuration_is_an_error(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(SloError, match=r"config\.json: not a model configuration"):
        resolve_model(str(tmp_path))
    (tmp_path / "config.json").unlink()
    with pytest.raises(SloError, match=r"there is no config\.json in it"):
        resolve_model(str(tmp_path))
