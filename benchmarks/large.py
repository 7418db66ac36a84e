"""Memory and time of commands on models of hundreds of millions of parameters.

python -m benchmarks.large --work DIR                              # 600M, as NLLB-200
python -m benchmarks.large --work DIR --shape 1.3B --commands import translate

The weights are random, and the vocabulary has as many rows as NLLB-200's, few with a text.
Memory is the proportional share of all processes of a command together, sampled ten times a second.
It takes as much free memory and disk as the tables say.
"""

import itertools
import json
import pathlib
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from benchmarks import command_line
from benchmarks.command_line import Report, log, markdown
from keras_transformer.base.errors import InputError


class Shape(NamedTuple):
    """Sizes of a model of NLLB-200."""

    width: int
    heads: int
    layers: int
    inner: int
    rows: int = 256_206


SHAPES = {
    "toy": Shape(64, 4, 2, 128, 4_000),
    "60MB": Shape(256, 4, 4, 1024, 30_000),
    "600M": Shape(1024, 16, 12, 4096),
    "1.3B": Shape(1024, 16, 24, 8192),
}
COMMANDS = {
    "import": "import {model} --dtype {dtype} --output {run}",
    "translate": "translate --model {run} --from en --to de --beam-size 4",
    "evaluate": (
        "evaluate --model {run} --from en --to de --beam-size 4 --source {text} --reference {text}"
    ),
    "lora": "train {recipe} --output {out}",
    "litert": "export --model {run} --format litert --quantize int8 --beam-size 4 --output {out}",
    "ctranslate2": (
        "export --model {run} --format ctranslate2 --quantize int8 --beam-size 4 --output {out}"
    ),
    "saved_model": (
        "export --model {run} --format saved_model --signatures serving_default "
        "--beam-size 4 --output {out}"
    ),
}
_LORA = """
data:
  train: {{source: {text}, target: {text}, languages: en-de}}
  validation: {{source: {text}, target: {text}, languages: en-de}}
training:
  start_from: {run}
  lora_rank: 8
  batch_tokens: 500
  accumulation_steps: 2
  max_shapes: 1
  epochs: 1
"""
FIELD = "Pss"
"""Field of `smaps_rollup`: by `Pss`, pages that several processes have are divided."""
PROGRAM = [sys.executable, "-m", "keras_transformer"]
_LANGUAGES = ("eng_Latn", "deu_Latn")
_SENTENCES = 10
_PAUSE = 0.1  # seconds between two samples of the memory


def table(
    work: pathlib.Path,
    shape: Literal["toy", "60MB", "600M", "1.3B"] = "600M",
    commands: Sequence[str] = tuple(COMMANDS),
    longest: int = 128,
    rounds: int = 1,
    dtype: Literal["float32", "float16"] = "float32",
) -> Report:
    """Peak memory, seconds and file sizes of each command on a model of random weights.

    Args:
        work: Directory for the model, its run and its exports.
        shape: Sizes of the model.
        commands: Commands, in this order; all but `import` need the run that it makes.
        longest: Tokens of each translation, since random weights end none before the limit.
        rounds: Times that all commands run, in turn; the medians are shown.
        dtype: Of the run's weights, to which the peaks are compared.
    """
    if unknown := set(commands) - {*COMMANDS}:
        rule = f"`commands` must be of {', '.join(COMMANDS)}"
        raise InputError(f"{rule}. Received: {', '.join(sorted(unknown))}.")
    work.mkdir(parents=True, exist_ok=True)
    model, run = work / f"model-{shape}", work / f"run-{shape}-{dtype}"
    if not model.exists():
        make_model(model, SHAPES[shape])
    weights = (model / "model.safetensors").stat().st_size / 1e9
    weights /= 4 / np.dtype(dtype).itemsize
    log(f"{shape}: {weights:.2f} GB of weights")
    sentence = "A dog plays with a ball in the snow, and a man looks on.\n"
    lines, text = sentence * _SENTENCES, work / "text"
    # 40 of them fill three batches of a training.
    text.write_text("".join(f"{number} {sentence}" for number in range(4 * _SENTENCES)))
    recipe = work / "lora.yaml"
    recipe.write_text(_LORA.format(run=run, text=text))
    paths = {"dtype": dtype, "model": model, "run": run, "text": text, "recipe": recipe}
    outputs = {name: run if name == "import" else work / f"export-{name}" for name in commands}
    figures: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for _, name in itertools.product(range(rounds), commands):
        if name != "import":
            _limit(run / "recipe.yaml", longest)
        command = [*PROGRAM, *COMMANDS[name].format(out=outputs[name], **paths).split()]
        shutil.rmtree(outputs[name], ignore_errors=True)
        figures[name].append(measured(command, lines if name == "translate" else ""))
        log(f"{name}: {figures[name][-1][0]:.1f} s, {figures[name][-1][1] / 1e9:.3f} GB")
    rows = []
    for name, made in outputs.items():
        seconds, peak = np.median(figures[name], axis=0).tolist()
        files = [file for file in made.rglob("*") if file.is_file()] if made.exists() else []
        size = sum(file.stat().st_size for file in files) / 1e6
        rows.append(
            {
                "command": name,
                "seconds": round(seconds, 1),
                "peak, GB": round(peak / 1e9, 3),
                "× weights": round(peak / 1e9 / weights, 2),
                "MB": round(size) if size else "",
            }
        )
        log(rows[-1])
    return Report({"shape": shape, "weights": weights, "rows": rows}, markdown(rows))


def _limit(recipe: pathlib.Path, longest: int) -> None:
    limited = re.sub(r"max_target_length: \d+", f"max_target_length: {longest}", recipe.read_text())
    recipe.write_text(limited)


def measured(command: Sequence[str], stdin: str = "") -> tuple[float, float]:
    """Runs a command; returns its seconds and its peak memory in bytes."""
    start, peak = time.perf_counter(), 0
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL}
    with subprocess.Popen(command, **pipes, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stderr is not None
        process.stdin.write(stdin)
        process.stdin.close()
        while process.poll() is None:
            peak = max(peak, sum(map(_share_of, _with_children(process.pid))))
            time.sleep(_PAUSE)
        message = process.stderr.read()
    if process.returncode:
        raise InputError(f"{' '.join(command)}: {message.strip().splitlines()[-1]}")
    return time.perf_counter() - start, float(peak)


def _with_children(pid: int) -> Iterator[int]:
    yield pid
    for file in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = file.read_text().split()
        except OSError:  # The thread has ended.
            continue
        for child in children:
            yield from _with_children(int(child))


def _share_of(pid: int) -> int:
    """Returns the memory of a process in bytes, by the field `FIELD`."""
    try:
        lines = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{FIELD}:")), 0) * 1024


def make_model(folder: pathlib.Path, shape: Shape) -> None:
    """Writes a folder of Hugging Face with random weights, in NLLB-200's layout."""
    import sentencepiece

    temporary = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    texts = ["a dog plays with a ball in the snow, and a man looks on."] * 20
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_prefix=str(temporary / "sentencepiece.bpe"),
        vocab_size=40,
        model_type="bpe",
        minloglevel=2,
    )
    first = 41  # after SentencePiece's pieces and `<pad>`
    added = {first + number: {"content": code} for number, code in enumerate(_LANGUAGES)}
    settings = {"tokenizer_class": "NllbTokenizer", "added_tokens_decoder": added}
    settings |= {"additional_special_tokens": list(_LANGUAGES)}
    (temporary / "tokenizer_config.json").write_text(json.dumps(settings))
    (temporary / "config.json").write_text(json.dumps(_config(shape)))
    _write_weights(temporary / "model.safetensors", shape)
    temporary.rename(folder)


def _config(shape):
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (
            ("layers", shape.layers),
            ("attention_heads", shape.heads),
            ("ffn_dim", shape.inner),
        )
    }
    ids = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}
    sizes = {"d_model": shape.width, "vocab_size": shape.rows, "max_position_embeddings": 1024}
    kind = {"model_type": "m2m_100", "activation_function": "relu", "scale_embedding": True}
    return {**kind, **sizes, **sides, **ids}


def _tensors(shape):
    """Yields names and shapes of the tensors, as transformers has them."""
    yield "model.shared.weight", (shape.rows, shape.width)
    for side in ("encoder", "decoder"):
        attentions = ("self_attn", "encoder_attn")[: 1 + (side == "decoder")]
        for layer in range(shape.layers):
            name = f"model.{side}.layers.{layer}"
            for attention in attentions:
                for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    yield f"{name}.{attention}.{part}.weight", (shape.width, shape.width)
                    yield f"{name}.{attention}.{part}.bias", (shape.width,)
                yield from _norm(f"{name}.{attention}_layer_norm", shape)
            yield f"{name}.fc1.weight", (shape.inner, shape.width)
            yield f"{name}.fc1.bias", (shape.inner,)
            yield f"{name}.fc2.weight", (shape.width, shape.inner)
            yield f"{name}.fc2.bias", (shape.width,)
            yield from _norm(f"{name}.final_layer_norm", shape)
        yield from _norm(f"model.{side}.layer_norm", shape)


def _norm(name, shape):
    yield f"{name}.weight", (shape.width,)
    yield f"{name}.bias", (shape.width,)


def _write_weights(path, shape):
    """Writes a file of safetensors, one tensor at a time."""
    header, offset = {}, 0
    for name, sizes in _tensors(shape):
        size = 4 * int(np.prod(sizes))
        header[name] = {"dtype": "F32", "shape": sizes, "data_offsets": [offset, offset + size]}
        offset += size
    content, rng = json.dumps(header).encode(), np.random.default_rng(1)
    with open(path, "wb") as file:
        file.write(len(content).to_bytes(8, "little") + content)
        for name, sizes in _tensors(shape):
            if name.endswith("norm.weight"):
                file.write(np.ones(sizes, "float32"))
                continue
            rows = max(1, 2**22 // int(np.prod(sizes[1:], initial=1)))
            for start in range(0, sizes[0], rows):
                block = (min(rows, sizes[0] - start), *sizes[1:])
                file.write(rng.normal(0, 0.02, block).astype("float32"))


def main(arguments: Sequence[str] | None = None) -> None:
    command_line.run(table, arguments=arguments)


if __name__ == "__main__":
    main()
