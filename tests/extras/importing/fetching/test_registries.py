"""Models of Firefox's and Argos' lists, from a server on loopback."""

import hashlib
import json

import pytest
from model_servers import FileServer, make_zip

from keras_transformer.base.errors import InputError
from keras_transformer.cli.main import run
from keras_transformer.extras.importing.fetching import local_model, registries

pytest.importorskip("httpx2", reason="comes with the extra [import]")
zstandard = pytest.importorskip("zstandard", reason="comes with the extra [import]")


class Lists(FileServer):
    """Serves both lists and their files."""

    def __init__(self):
        super().__init__()
        self.records, self.packages = [], []

    def add(self, kind, content, pair="en-de", architecture="tiny", version="3.0", **fields):
        """Adds a file to Firefox's list; `.zst` files hold compressed content."""
        source, _, target = pair.partition("-")
        name = f"{kind}.{source}{target}.bin"
        location = f"{architecture}/{version}/{name}"
        is_compressed = fields.pop("is_compressed", True)
        stored = zstandard.compress(content) if is_compressed else content
        self.files[f"/{location}"] = stored
        attachment = {"location": location, "hash": hashlib.sha256(stored).hexdigest()}
        record = {"name": name, "fileType": kind, "version": version, "architecture": architecture}
        record |= {"sourceLanguage": source, "targetLanguage": target, "attachment": attachment}
        record["decompressedHash"] = hashlib.sha256(content).hexdigest()
        self.records.append({**record, **fields})

    def add_package(self, version, content=b"", **fields):
        """Adds a package to Argos' list."""
        path = f"/{version}.argosmodel"
        self.files[path] = content
        package = {"from_code": "en", "to_code": "de", "package_version": version}
        package["links"] = ["ipfs://x", f"{self.url}{path}"]
        self.packages.append({**package, **fields})

    def publish(self):
        """Writes the lists."""
        self.files["/firefox"] = json.dumps({"data": self.records}).encode()
        self.files["/argos"] = json.dumps(self.packages).encode()


@pytest.fixture
def lists(monkeypatch):
    with Lists().running() as lists:
        monkeypatch.setattr(registries, "FIREFOX_LIST", f"{lists.url}/firefox")
        monkeypatch.setattr(registries, "FIREFOX_FILES", f"{lists.url}/")
        monkeypatch.setenv("ARGOS_PACKAGES_INDEX", f"{lists.url}/argos")
        yield lists


def fetched(lists, name):
    """The files of a model by name, with its name and version."""
    lists.publish()
    with local_model(name, None, lambda folder: None) as model:
        files = {path.name: path.read_bytes() for path in model.folder.iterdir()}
        assert set(model.origin()["files"]) == set(model.checksums)
        return files, model.name, model.revision


def test_the_newest_files_of_a_direction_come_with_the_shortlist(lists):
    for version in ("3.2", "3.10", "3.9", "2.11", "4.0"):
        lists.add("model", f"model {version}".encode(), version=version)
    lists.add("model", b"of the test versions", architecture="base", version="3.11")
    lists.records[-1]["filter_expression"] = "env.channel == 'nightly'"
    lists.add("model", b"old", architecture="base-memory", is_compressed=False)
    lists.add("model", b"Spanish", pair="en-es", version="3.12")
    for architecture in ("tiny", "base", "base-memory"):
        lists.add("vocab", b"pieces", architecture=architecture)
        lists.add("srcvocab", b"not for this model", architecture=architecture)
    lists.add("lex", b"words", version="3.1")
    lists.add("qualityModel", b"unused")
    lists.records += [{}, {"name": None}, {**lists.records[0], "version": "x"}]
    files = {"model.ende.bin": b"model 3.10", "vocab.ende.bin": b"pieces", "lex.ende.bin": b"words"}
    assert fetched(lists, "firefox:en-de") == (files, "firefox:en-de/tiny", "3.10")
    assert fetched(lists, "firefox:en-de/base")[0]["model.ende.bin"] == b"of the test versions"
    assert fetched(lists, "firefox:en-de/base-memory")[0]["model.ende.bin"] == b"old"


def test_two_vocabularies_take_the_place_of_one(lists):
    for kind in ("model", "srcvocab", "trgvocab"):
        lists.add(kind, kind.encode(), pair="en-ja")
    lists.add("model", b"without a vocabulary", pair="en-ko")
    assert len(fetched(lists, "firefox:en-ja/tiny")[0]) == 3
    with pytest.raises(InputError, match="firefox:en-ko: the list has no such model"):
        fetched(lists, "firefox:en-ko")


def test_the_newest_package_of_argos_is_unpacked(lists, tmp_path):
    path = make_zip(tmp_path / "x", {"translate-en_de/metadata.json": b"{}"})
    lists.add_package("1.9")
    lists.add_package("1.10", path.read_bytes())
    lists.add_package("2.0", type="sbd")
    assert fetched(lists, "argos:en-de") == ({"metadata.json": b"{}"}, "argos:en-de", "1.10")


def test_the_lists_are_shown_without_a_run(lists, capsys):
    lists.add("model", bytes(10))
    lists.add("vocab", bytes(10))
    lists.records[0]["attachment"]["size"] = 17_000_000
    lists.add_package("1.9")
    lists.publish()
    assert run(["import", "firefox:", "--list"]) == 0
    assert run(["import", "argos:", "--list"]) == 0
    assert capsys.readouterr().out == "firefox:en-de/tiny 3.0 17 MB\nargos:en-de 1.9\n"
    assert run(["import", "Helsinki-NLP/opus-mt-en-de", "--list"]) == 2
    assert "Only firefox: and argos: have a list." in capsys.readouterr().err


LONG = "x" * 100_000
WRONG = [None, True, 5, 1e400, "", "..", LONG, "a\nb", [], ["a"], {}, {"a": "b"}, [[]]]


def test_a_wrong_record_hides_no_other_model(lists, capsys):
    lists.add("model", b"weights")
    lists.add("vocab", b"pieces")
    lists.add_package("1.9")
    records, packages = list(lists.records), list(lists.packages)
    for record, changed in [(records[0], lists.records), (packages[0], lists.packages)]:
        changed += WRONG
        for name in record:
            changed += [{**record, name: value} for value in WRONG]
            changed.append({key: value for key, value in record.items() if key != name})
    for name in records[0]["attachment"]:
        attachments = [{**records[0]["attachment"], name: value} for value in WRONG]
        lists.records += [{**records[0], "attachment": value} for value in attachments]
    lists.packages.append({**packages[0], "links": ["ipfs://x"]})
    lists.packages.append({**packages[0], "links": [None, *packages[0]["links"]]})
    lists.publish()
    for name in ("firefox:", "argos:"):
        assert run(["import", name, "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {"firefox:en-de/tiny 3.0", "argos:en-de 1.9"} <= set(lines)
    assert all(line.isprintable() and len(line) < 2000 for line in lines)
    files, *_ = fetched(lists, "firefox:en-de/tiny")
    assert files == {"model.ende.bin": b"weights", "vocab.ende.bin": b"pieces"}


NO_LISTS = [b"{}", b"[]", b"null", b'"x"', b'{"data": {}}', b"[" * 10**5, b"<!DOCTYPE html>"]


@pytest.mark.parametrize("content", NO_LISTS)
def test_what_is_no_list_is_one_line(lists, content, capsys):
    lists.files["/firefox"] = content
    lists.files["/argos"] = content if content != b"[]" else b"{}"
    for name in ("firefox:", "argos:"):
        assert run(["import", name, "--list"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"/{name[:-1]}: expected a list of models. Received: " in line and len(line) < 300


@pytest.mark.parametrize("name", ["files", "downloads", "model", "unpacked"])
def test_a_file_of_a_list_may_have_any_plain_name(lists, name):
    lists.add("model", b"weights")
    lists.add("vocab", b"pieces")
    lists.records[0]["name"] = name
    assert fetched(lists, "firefox:en-de")[0][name] == b"weights"
    lists.records[1]["name"] = name
    with pytest.raises(InputError, match="the list has no such model"):
        fetched(lists, "firefox:en-de")


FAULTS = {
    "direction": ("firefox:de-en", "`keras-transformer import firefox: --list` shows all"),
    "variant": ("firefox:en-de/huge", "has no such model. Its models are tiny."),
    "package": ("argos:en-xx", "argos:en-xx: the list has no such model."),
    "hash": ("firefox:en-de", "the SHA-256 checksum must be 00"),
    "decompressedHash": ("firefox:en-de", "the SHA-256 checksum must be 00"),
    "cut": ("firefox:en-de", "expected a whole Zstandard file"),
    "bomb": ("firefox:en-de", "must be at most 20 times as large unpacked"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_a_list_is_one_line(lists, fault, monkeypatch, tmp_path, capsys):
    name, message = FAULTS[fault]
    lists.add("model", bytes(100_000 if fault == "bomb" else 100))
    lists.add("vocab", b"pieces")
    lists.add_package("1.9")
    path = "/tiny/3.0/model.ende.bin"
    if fault == "hash":
        lists.records[0]["attachment"]["hash"] = "00"
    elif fault == "decompressedHash":
        lists.records[0]["decompressedHash"] = "00"
    elif fault == "cut":
        lists.files[path] = lists.files[path][:-3]
        lists.records[0]["attachment"]["hash"] = None
    elif fault == "bomb":
        monkeypatch.setattr("keras_transformer.base.reading._FREE_BYTES", 0)
    lists.publish()
    assert run(["import", name, "--output", str(tmp_path / "run")]) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith("keras-transformer: ") and message in line
    assert list(tmp_path.iterdir()) == []
