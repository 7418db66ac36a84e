"""Trainings with and without a tool for text, one after another, resumed where they stopped."""

import json
import pathlib
import random
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from benchmarks.command_line import Report, call, log, markdown
from keras_transformer.data import read_lines, read_pairs
from keras_transformer.training import Recipe

Path = pathlib.Path
NOISE = {"upper_case": 0.05, "title_case": 0.02, "typos": 0.05, "no_punctuation": 0.05}
NOISE |= {"subwords": 0.2}
_TEST = "test_2016_flickr"


def runs(
    experiments: Sequence[Literal["noise", "glossary", "synthesize", "clean"]],
    /,
    data: Path,
    recipe: Path,
    work: Path,
    settings: Sequence[str] = (),
) -> Report:
    """Worth of text tools: scores of trainings with and without them.

    `noise` trains with `data.noise`; `glossary` with annotated terms, and translates terms that
    were never annotated; `synthesize` on half of the pairs, with and without back-translations of
    the other half; `clean` on all pairs with the other half damaged, on what `keras-transformer
    clean` leaves, and on the undamaged half. All are compared with a training on all pairs. Fewer
    pairs get more epochs, to read as many. The same command continues where it was interrupted.

    Args:
        experiments: Tools to try.
        data: Directory of Multi30k.
        recipe: Recipe with the model and the training.
        work: Directory of texts, runs and figures.
        settings: Changes of the recipe, section.key=value.
    """
    stretch = _Stretch(data.resolve(), recipe, work.resolve(), settings)
    for experiment in experiments:
        _EXPERIMENTS[experiment](stretch)
    return stretch.report()


class _Stretch:
    """Runs and figures that are made only once."""

    def __init__(self, data, recipe, work, settings):
        self.data, self.recipe, self.work, self.settings = data, recipe, work, settings
        work.mkdir(parents=True, exist_ok=True)
        self.whole = [data / "train.en", data / "train.de"]
        self.epochs = Recipe.load(recipe, settings).training.epochs
        self.test = ["--source", data / f"{_TEST}.en", "--reference", data / f"{_TEST}.de"]

    def corpus(self, name: str, pairs: Iterable[tuple[str, str]]) -> list[Path]:
        """Writes both sides of pairs."""
        sides = zip(("en", "de"), zip(*pairs, strict=True), strict=True)
        return [self.text(f"{name}.{side}", lines) for side, lines in sides]

    def text(self, name: str, lines: Iterable[str]) -> Path:
        """Writes a file of lines."""
        path = self.work / name
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        return path

    def product(self, name: str, *command: object, module: str = "keras_transformer") -> Path:
        """File of what a command writes to stdout, unless it is there."""
        path, partial = self.work / name, self.work / f".{name}"
        if not path.exists():
            with open(partial, "w", encoding="utf-8") as file:
                call(*command, module=module, stdout=file)
            partial.rename(path)
        return path

    def train(
        self, name: str, train: Any, sides: Sequence[str] = ("en", "de"), **data: Any
    ) -> Path:
        """Trains with options of `data`, or continues, unless the run is complete."""
        run = self.work / name
        if (run / "metrics.json").exists():
            return run
        log(f"training {name}")
        validation = files(*(self.data / f"val.{side}" for side in sides))
        data = {"folder": "/", "train": train, "validation": validation, **data}
        values = [f"data.{key}={json.dumps(value)}" for key, value in data.items()]
        values.append(f"training.epochs={self.epochs_of(train)}")
        changes = [f"--set={setting}" for setting in (*self.settings, *values)]
        resume = ["--resume"] if (run / "recipe.yaml").exists() else []
        call("train", self.recipe, "--output", run, *changes, *resume, stdout=sys.stderr)
        return run

    def epochs_of(self, train: Any) -> int:
        """Computes the number of epochs that give the steps of a training on all pairs."""
        entries = train if isinstance(train, list) else [train]
        pairs = sum(len(read_lines(entry["source"])) for entry in entries)
        return round(self.epochs * len(read_lines(self.whole[0])) / pairs)

    def scored(self, name: str, train: Any, **data: Any) -> Path:
        """Trains, and scores translations of the test text."""
        run = self.train(name, train, **data)
        save = ["--output", f"{run}.test.de"]
        self.product(f"{name}.scores.json", "evaluate", "--model", run, *self.test, *save)
        return run

    def all_pairs(self) -> Path:
        return self.scored("all", files(*self.whole))

    def report(self) -> Report:
        """Collects the figures so far."""
        figures: dict[str, Any] = {"runs": {}}
        for path in sorted(self.work.glob("*.json")):
            name, result = path.stem, json.loads(path.read_text(encoding="utf-8"))
            if not name.endswith(".scores"):
                figures[name] = result
                continue
            name = name.removesuffix(".scores")
            metrics = json.loads((self.work / name / "metrics.json").read_text(encoding="utf-8"))
            row = {"epochs": metrics["epochs"], "minutes": metrics["training_minutes"]}
            row |= {"BLEU": round(result["bleu"], 2), "chrF": round(result["chrf"], 2)}
            figures["runs"][name] = row
        rows = [{"run": name, **row} for name, row in figures["runs"].items()]
        return Report(figures, markdown(rows))


def _noise(stretch):
    runs = {"all": stretch.all_pairs()}
    runs["noise"] = stretch.scored("noise", files(*stretch.whole), noise=NOISE)
    models = [f"{name}={run}" for name, run in runs.items()]
    stretch.product("noise.json", "noise", *models, *stretch.test, module="benchmarks.quality")


def _glossary(stretch):
    learned = read_lines(stretch.product("terms.tsv", "glossary", *stretch.whole))
    terms = dict.fromkeys(line.split("\t")[0] for line in learned)
    held_out = set(list(terms)[::4])
    lines = [line for line in learned if line.split("\t")[0] in held_out]
    unseen = stretch.text("unseen.tsv", lines)
    seen = stretch.text("seen.tsv", [line for line in learned if line not in lines])
    options = {"glossary": str(seen), "glossary_share": 0.3}
    constrained = stretch.all_pairs()
    annotated = stretch.scored("glossary", files(*stretch.whole), **options)
    for by, run in (("constraints", constrained), ("annotations", annotated)):
        command = ["glossary", "--model", run, *stretch.test, "--terms", unseen, "--by", by]
        stretch.product(f"terms by {by}.json", *command, module="benchmarks.quality")


def _synthesize(stretch):
    pairs = list(zip(*read_pairs(*stretch.whole), strict=True))
    half = stretch.corpus("half", pairs[::2])
    back = stretch.train("de-en", files(*reversed(half)), sides=("de", "en"))
    mono = stretch.text("mono.de", [target for _, target in pairs[1::2]])
    command = ["--back", mono, "--output", stretch.work / "synthetic"]
    report = stretch.product("synthetic.json", "synthesize", "--model", back, *command)
    synthetic = json.loads(report.read_text(encoding="utf-8"))["train"]
    stretch.scored("half", files(*half))
    stretch.scored("half-and-back", [{"name": "people", **files(*half)}, *synthetic])
    stretch.all_pairs()


def damage(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Damages every second pair in one of five ways."""
    rng = random.Random(11)
    ways: list[Callable[[str, str], tuple[str, str]]] = [
        lambda source, target: (source, source),
        lambda source, target: (source, target[: len(target) // 4]),
        lambda source, target: (f"{source} https://spam.example/{rng.randrange(1000)}", target),
        lambda source, target: (source, target.rstrip(".") + " 12 34 56"),
        lambda source, target: (source, rng.choice(pairs)[1]),
    ]
    return [rng.choice(ways)(*pair) if index % 2 else pair for index, pair in enumerate(pairs)]


def _clean(stretch):
    pairs = list(zip(*read_pairs(*stretch.whole), strict=True))
    half, damaged = stretch.corpus("half", pairs[::2]), stretch.corpus("damaged", damage(pairs))
    texts, output = {"half": half, "damaged": damaged}, stretch.work / "cleaned-text"
    languages = ["--from", "en", "--to", "de"]
    command = ["clean", *damaged, "--output", output, "--overwrite", "--json", *languages]
    stretch.product("cleaned-text.json", *command)
    texts["cleaned"] = [output / path.name for path in damaged]
    for name, corpus in texts.items():
        stretch.scored(name, files(*corpus))
    stretch.all_pairs()


_EXPERIMENTS = dict(noise=_noise, glossary=_glossary, synthesize=_synthesize, clean=_clean)


def files(source: Path, target: Path) -> Mapping[str, str]:
    """Returns an entry of `data.train`."""
    return {"source": str(source), "target": str(target)}
