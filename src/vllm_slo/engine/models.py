"""Models: a path or hub name as vLLM takes it, or `shape:<name>`, made here from its dimensions."""

import difflib
import hashlib
import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_slo.engine.files import cache_folder
from vllm_slo.engine.shapes import SHAPES, Shape
from vllm_slo.errors import SloError

SHAPE_PREFIX = "shape:"
# A hub model's vocabulary is not known before it is fetched. Every tokenizer in use has more
# words than this, so that prompt ids drawn below it are valid everywhere.
ASSUMED_VOCAB_SIZE = 32000
_SPECIAL = ("<unk>", "<s>", "</s>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model as a server is started with it.

    `source` is what vLLM's `--model` takes; `served_name` what requests name. `vocab_size` bounds
    prompt ids; for a hub name it is `ASSUMED_VOCAB_SIZE`. `is_dummy` models have random weights;
    `is_local` ones need no network.
    """

    name: str
    source: str
    served_name: str
    vocab_size: int
    max_model_len: int | None
    is_dummy: bool
    is_local: bool


def resolve_model(spec: str, *, cache_dir: Path | None = None) -> Model:
    """Reads `spec`: `shape:<name>`, a folder, or a hub name; makes a shape's folder where missing.

    Raises:
        SloError: an unknown shape, a folder that holds no readable model configuration, or text
            that is neither a folder nor a hub name.
    """
    if spec.startswith(SHAPE_PREFIX):
        return _shape_model(spec.removeprefix(SHAPE_PREFIX), cache_folder(cache_dir) / "models")
    path = Path(spec).expanduser()
    if spec.strip() and path.is_dir():
        return _folder_model(path.resolve())
    if spec.startswith(("/", ".", "~")) or spec.count("/") > 1 or not spec.strip():
        raise SloError(
            f"model {spec!r}: there is no such folder\n"
            f"give a folder with a config.json, a hub name such as org/model, or one of: "
            f"{_known_shapes()}"
        )
    if "/" not in spec and spec in SHAPES:
        raise SloError(f"model {spec!r}: did you mean {SHAPE_PREFIX}{spec}?")
    return Model(
        name=spec.rsplit("/", 1)[-1].lower(),
        source=spec,
        served_name=spec,
        vocab_size=ASSUMED_VOCAB_SIZE,
        max_model_len=None,
        is_dummy=False,
        is_local=False,
    )


def _known_shapes() -> str:
    return ", ".join(SHAPE_PREFIX + name for name in SHAPES)


def _shape_model(name: str, models_dir: Path) -> Model:
    shape = SHAPES.get(name)
    if shape is None:
        close = difflib.get_close_matches(name.lower(), SHAPES, n=1)
        hint = f"; did you mean {SHAPE_PREFIX}{close[0]}?" if close else ""
        raise SloError(
            f"model {SHAPE_PREFIX + name!r}: there is no such shape{hint}\n"
            f"there are: {_known_shapes()}"
        )
    return Model(
        name=name,
        source=str(_made(shape, models_dir)),
        served_name=name,
        vocab_size=shape.vocab_size,
        max_model_len=shape.max_position_embeddings,
        is_dummy=True,
        is_local=True,
    )


def _folder_model(path: Path) -> Model:
    config_path = path / "config.json"
    try:
        config = json.loads(config_path.read_text(encoding="utf-8"))
        # A model of several parts keeps its language model's figures one level down.
        text = config.get("text_config") or config
        vocab_size = int(text["vocab_size"])
        length = text.get("max_position_embeddings")
    except FileNotFoundError:
        raise SloError(f"model {path}: there is no config.json in it") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise SloError(
            f"{config_path}: not a model configuration with a vocab_size: {error!r}"
        ) from error
    return Model(
        name=path.name.lower(),
        source=str(path),
        served_name=path.name,
        vocab_size=vocab_size,
        max_model_len=length if isinstance(length, int) else None,
        is_dummy=False,
        is_local=True,
    )


def _made(shape: Shape, models_dir: Path) -> Path:
    """The folder of `shape`, written aside and renamed: another process sees all of it or none.

    Its name has a digest of what is written, so that a folder there is always the right one.
    """
    files = _files(shape)
    digest = hashlib.sha256("".join(files.values()).encode()).hexdigest()[:8]
    folder = models_dir / f"{shape.name}-{digest}"
    if folder.is_dir():
        return folder
    models_dir.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{shape.name}-", dir=models_dir))
    try:
        for name, text in files.items():
            (aside / name).write_text(text, encoding="utf-8")
        aside.chmod(0o755)
        try:
            aside.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was first, with the same content
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return folder


def _files(shape: Shape) -> dict[str, str]:
    """A model folder's files: name to text."""
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": _SPECIAL[0],
        "bos_token": _SPECIAL[1],
        "eos_token": _SPECIAL[2],
        "model_max_length": shape.max_position_embeddings,
        "clean_up_tokenization_spaces": False,
        "chat_template": "{% for message in messages %}{{ message['content'] }} {% endfor %}",
    }
    return {
        "config.json": json.dumps(shape.config(), indent=2),
        "generation_config.json": json.dumps({"bos_token_id": 1, "eos_token_id": 2}),
        "tokenizer_config.json": json.dumps(settings, indent=2),
        "tokenizer.json": json.dumps(_tokenizer(shape.vocab_size)),
    }


def _tokenizer(vocab_size: int) -> dict[str, Any]:
    """A word-level tokenizer of exactly `vocab_size` words: three special ones, then w3, w4, ...

    The form is that of Hugging Face `tokenizers`, version 1.0 of its JSON.
    """
    words = [*_SPECIAL, *(f"w{i}" for i in range(len(_SPECIAL), vocab_size))]
    added = [
        {
            "id": i,
            "content": word,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for i, word in enumerate(_SPECIAL)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {word: i for i, word in enumerate(words)},
            "unk_token": _SPECIAL[0],
        },
    }
