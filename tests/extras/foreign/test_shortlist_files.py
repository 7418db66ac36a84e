"""Shortlists of models of other programs, read with the ids of this package."""

import gzip
import pathlib
import shutil
import struct

import numpy as np
import pytest

from keras_transformer.extras.importing.importing import import_run, read_model
from keras_transformer.runs.run_folder import RunFolder
from keras_transformer.text.vocabulary import parsed

DATA = pathlib.Path(__file__).parents[2] / "data"
FREQUENT = [0, 1, 2, 3]


def binary(first, lists, magic=0xF11A48D5013417F5, flipped=0):
    """A file of Marian's: lists of target ids of source ids from 0 on."""
    ids = [id for ids in lists for id in ids]
    offsets = np.cumsum([0, *map(len, lists)]).tolist()
    body = struct.pack(f"<4Q{len(offsets)}Q", first, 50, len(offsets), len(ids), *offsets)
    body += np.array(ids, "<u4").tobytes()
    checksum = np.uint64(0)
    with np.errstate(over="ignore"):
        for value in np.frombuffer(body[: len(body) // 8 * 8], "<u8"):
            shifted = (checksum << np.uint64(6)) + (checksum >> np.uint64(2))
            checksum ^= value + np.uint64(0x9E3779B9) + shifted
    return struct.pack("<2Q", magic, int(checksum) ^ flipped) + body


def folder_with(tmp_path, toy, name, content):
    folder = tmp_path / "model"
    shutil.copytree(DATA / toy, folder)
    (folder / name).write_bytes(content)
    return folder


def candidates(folder, *file_ids):
    """Candidates of the file's source ids, by the model's files without Keras."""
    model = read_model(folder)
    assert not any("shortlist" in note for note in model.notes)
    rows = model.vocabularies[0].rows
    return [model.shortlist.candidates_of([rows.index(id)]).tolist() for id in file_ids]


def test_the_list_of_a_student_has_this_packages_ids_and_own_tokens(tmp_path):
    lists = [[], [], [9, 7], [], [30]]
    folder = folder_with(tmp_path, "marian/student", "lex.50.50.s2t.bin", binary(4, lists))
    # </s> and <unk> are 2 and 3, id i of the file becomes i + 2.
    always = [*FREQUENT, 4, 5]
    expected = [[*always, 9, 11], always, [*always, 6, 32], [*always, 22]]
    assert candidates(folder, 2, 3, 4, 20) == [sorted({*ids}) for ids in expected]
    run = RunFolder(import_run(folder, tmp_path / "run"))
    assert run.shortlist().candidates_of([6]).tolist() == expected[2]
    assert run.shortlist().source_vocabulary_size == run.tokenizers()[0].vocabulary_size
    assert import_run(DATA / "marian" / "student", tmp_path / "run", overwrite=True)
    assert run.shortlist() is None


def test_two_vocabularies_have_no_own_tokens(tmp_path):
    folder = folder_with(tmp_path, "marian/student", "lex.bin", binary(2, [[]] * 5 + [[8]]))
    (folder / "config.yml").unlink()
    model = parsed((folder / "vocab.en.spm").read_bytes())
    (folder / "vocab.en.spm").rename(folder / "vocab.src.spm")
    model.pieces[-1].piece += "x"
    (folder / "vocab.trg.spm").write_bytes(model.SerializeToString())
    assert candidates(folder, 5, 6) == [[*FREQUENT, 10], FREQUENT]


@pytest.mark.parametrize("name", ["lex.s2t", "lex.s2t.gz"])
def test_a_text_has_the_most_probable_tokens(tmp_path, name):
    names = parsed((DATA / "marian/student/vocab.en.spm").read_bytes()).pieces
    a, b, c, d = (piece.piece for piece in names[20:24])
    rows = [(b, a, 0.25), (c, a, 0.5), (d, a, "25e-2"), (a, "NULL", 0.9), ("NULL", a, 0.9)]
    rows += [("unheard", a, 0.9), (d, "unheard", 0.9)]
    content = "".join(f"{target} {source} {value}\n" for target, source, value in rows).encode()
    content = content if name.endswith("s2t") else gzip.compress(content)
    folder = folder_with(tmp_path, "marian/student", name, content)
    # Marian's defaults, 100 frequent tokens and 100 per source token, are more than there are.
    assert candidates(folder, 25) == [[0, 1, *range(2, len(names) + 2)]]
    with open(folder / "config.yml", "a", encoding="utf-8") as file:
        file.write(f"shortlist:\n- {name}\n- 3\n- 2\n")
    # Of equal probabilities that of the larger id, as in Marian.
    assert candidates(folder, 20, 25) == [[*FREQUENT, 4, 22, 24, 25], [*FREQUENT, 4, 27]]


def test_a_vocabulary_map_has_tokens_phrases_and_what_is_always_there(tmp_path):
    folder = folder_with(tmp_path, "ctranslate2/old_v5_txt", "vmap.txt", b"")
    names = (folder / "shared_vocabulary.txt").read_text("utf-8").splitlines()
    ids = {name: row for row, name in enumerate(names)}
    a, b, c, d, e = names[10:15]
    lines = [f"\t{a}", f"{b}\t{c} {d} unheard", f"{b} {c}\t{e}", f"{b} unheard\t{b}"]
    lines += [f"\t{b}", f"{a} {c}\t{d}"]  # A second line of the same token.
    (folder / "vmap.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    rows = read_model(folder).vocabularies[1].rows
    new = {name: rows.index(ids[name]) for name in (a, b, c, d, e)}
    always = sorted([*FREQUENT, new[a], new[b]])
    assert candidates(folder, ids[b], ids[c], ids[d]) == [
        sorted([*always, new[c], new[d]]),
        sorted([*always, new[d], new[e]]),
        always,
    ]


BAD = {
    "another file": b"",
    "half of it": binary(2, [[7]])[:-1],
    "another magic": binary(2, [[7]], magic=1),
    "a changed byte": binary(2, [[7]], flipped=4),
    "another vocabulary": binary(2, [[7]] * 4000),
    "ids of another vocabulary": binary(2, [[4000]]),
    "falling offsets": binary(2, [[7, 7], [8]]).replace(struct.pack("<Q", 2), b"\xff" * 8),
}


@pytest.mark.parametrize("content", BAD.values(), ids=BAD)
def test_a_damaged_list_is_a_line_and_no_list(tmp_path, content):
    model = read_model(folder_with(tmp_path, "marian/student", "lex.bin", content))
    (note,) = model.notes
    assert model.shortlist is None and "\n" not in note
    assert "lex.bin: cannot be read as a shortlist: " in note
    assert note.endswith(" The run has no shortlist.")


@pytest.mark.parametrize(
    ("toy", "name"), [("ctranslate2/old_v5_txt", "vmap.txt"), ("marian/opus", "lex.s2t")]
)
@pytest.mark.parametrize("content", [b"no tab\n", b"\xff\tx\n", b""])
def test_a_damaged_text_is_a_line_and_no_list(tmp_path, toy, name, content):
    model = read_model(folder_with(tmp_path, toy, name, content))
    assert model.shortlist is None and f"{name}" in model.notes[-1]
