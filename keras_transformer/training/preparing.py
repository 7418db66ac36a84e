"""Texts of a training: its recipe with all values, its tokenizers and its batches."""

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from keras_transformer.base.errors import InputError, print_lines
from keras_transformer.base.options import received
from keras_transformer.data import ParallelDataset
from keras_transformer.engine.device import DevicePlan
from keras_transformer.runs.run_folder import RESUME, RunFolder
from keras_transformer.text.languages import Languages
from keras_transformer.training.hosts import Host
from keras_transformer.training.optimizer import warmup_advice
from keras_transformer.training.recipe import Recipe
from keras_transformer.training.recipe_texts import Digests, RecipeTexts, Tokenizers, languages_of

_PROMPT_WORDS = 3
# Options of `training` that are null until the run has them.
_RESOLVED = (
    "batch_tokens",
    "max_shapes",
    "warmup_steps",
    "learning_rate",
)
# Fields that `--resume` may change. The checkpoint holds the state of other fields, or they would
# lead to other weights than in an uninterrupted run.
_FREE = {
    "epochs",
    "early_stopping_patience",
    "sample_translations",
    "shortlist",
    # Texts are compared by their checksums, so that they may be moved.
    "folder",
}


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A training before its model is made.

    Attributes:
        recipe: Recipe of the run, with the values that depend on texts and device.
        tokenizers: Tokenizers of source and target.
        languages: Languages of the model, None if they are unknown.
        datasets: Batches by part, `train` and `validation`.
        reports: Filter statistics by part.
        digests: Checksums of the texts; see `RecipeTexts.digests`.
        validation: `(source, reference)` texts for BLEU and samples.
        validation_names: Name of the corpus of each of these pairs; empty for a single corpus.
        validation_directions: Codes of the languages of each of these pairs, where the engine needs
            them; otherwise empty.
        is_resumed: Whether the run continues from its folder.
        check_replaceable: Function that raises `InputError` if the folder may not be replaced.
    """

    recipe: Recipe
    tokenizers: Tokenizers
    languages: Languages | None
    datasets: dict[str, ParallelDataset]
    reports: Mapping[str, Any]
    digests: Digests
    validation: list[tuple[str, str]]
    validation_names: list[str]
    is_resumed: bool
    check_replaceable: Callable[[], object] = lambda: None
    validation_directions: Sequence[tuple[str | None, str | None]] = ()


def prepare(
    recipe: Recipe,
    folder: RunFolder,
    host: Host,
    plan: DevicePlan,
    overwrite: bool = False,
    recipe_file: str | os.PathLike | None = None,
) -> Prepared:
    """Reads the texts, learns the vocabularies and makes batches of a new run.

    Args:
        recipe: Recipe.
        folder: Folder of the run, which is not written.
        host: This host.
        plan: Shapes and rows that suit the device.
        overwrite: Whether an existing run is replaced.
        recipe_file: Path of the recipe, which is not overwritten.

    Raises:
        InputError: A text, the recipe or the folder is invalid.
    """
    recipe = recipe.with_training(batch_tokens=plan.batch_tokens)
    origin, data = origin_of(recipe), recipe.data
    if origin is not None:  # Exports name the model that was imported, and its licence.
        recipe = dataclasses.replace(recipe, origin=origin.origin())
    learned_tokenizers = None if origin is None else origin.tokenizers()
    where = "" if recipe_file is None else f"{os.fspath(recipe_file)}: "
    languages = languages_of(recipe, origin, where)
    texts = RecipeTexts(recipe, learned_tokenizers, languages=languages, plan=plan)
    start_from = recipe.training.start_from
    inputs = {"the recipe": recipe_file, "`training.start_from`": start_from}
    if data.glossary is not None:
        inputs["`data.glossary`"] = os.path.join(data.folder, data.glossary)
    for part in ("train", "validation"):
        for corpus in recipe.data.corpora(part):
            key = f"data.{part}.{corpus.name}".rstrip(".")
            sides = zip(("source", "target"), texts.files_of(corpus), strict=True)
            inputs |= {f"`{key}.{side}`": file for side, file in sides}
    check_replaceable = functools.partial(folder.check_replaceable, overwrite, inputs, RESUME)
    check_replaceable()
    prepared = _prepared(recipe, texts, texts.tokenizers(), languages, host, check_replaceable)
    recipe = prepared.recipe.with_training(max_shapes=texts.max_shapes)
    return dataclasses.replace(prepared, recipe=recipe)


def resume(recipe: Recipe, folder: RunFolder, host: Host, plan: DevicePlan) -> Prepared:
    """Reads the texts and vocabularies of an existing run, and makes its batches.

    Raises:
        InputError: There is no run, or the recipe or its texts are others than the run's.
    """
    if not folder.path.is_dir():
        raise InputError(f"{folder.path}: no such run folder. Leave `resume` out to begin.")
    RunFolder.existing(folder.path)
    # A run keeps its batches on another device: the number of a step is an index of them. It
    # keeps its learning rate with another number of epochs.
    earlier = Recipe.of_run(folder).training
    recipe = recipe.with_training(**{name: getattr(earlier, name) for name in _RESOLVED})
    recipe = recipe.with_text_rules(folder.decoding().text_rules)
    check_resumable(folder, recipe)
    recipe = dataclasses.replace(recipe, origin=folder.origin())
    tokenizers = folder.tokenizers()

    def check_texts(digests):
        for part, sides in folder.digests().items():
            for side, digest in sides.items():
                if digests.get(part, {}).get(side) != digest:
                    files = " and ".join(map(str, texts.files(part)))
                    raise InputError(
                        f"{folder.path}: cannot be resumed, because its texts have changed. "
                        f"Received: another {side} side of `data.{part}`, {files}."
                    )

    languages = languages_of(recipe, folder)
    texts = RecipeTexts(recipe, tokenizers, check_texts, languages, plan)
    return _prepared(recipe, texts, tokenizers, languages, host)


def check_resumable(folder: RunFolder, recipe: Recipe) -> None:
    """Raises `InputError` if `recipe` differs from the run's in a field that must not change."""
    run_options, new_options = Recipe.of_run(folder).to_dict(), recipe.to_dict()
    for section in ("data", "text", "model", "training"):
        for key in sorted(run_options[section].keys() | new_options[section].keys()):
            values = run_options[section].get(key), new_options[section].get(key)
            is_equal = len({str(_without_files(key, value)) for value in values}) == 1
            if not is_equal and key not in _FREE:
                raise InputError(
                    f"{folder.path}: cannot be resumed with another `{section}.{key}`. "
                    f"Received: {new_options[section].get(key)!r} instead of "
                    f"{run_options[section].get(key)!r}."
                )
    # `model.keras` is written after the first checkpoint.
    if folder.model_file.exists() and not folder.checkpoint_epochs():
        raise InputError(f"{folder.path}: there is no checkpoint to resume from.")


def _without_files(key, value):
    """Returns a field's value without paths of files whose texts have checksums."""
    if key == "glossary":
        return value is not None
    if isinstance(value, dict) and "source" in value:
        return {name: value[name] for name in value if name not in ("source", "target")}
    is_list = isinstance(value, (list, tuple))
    return [_without_files("", corpus) for corpus in value] if is_list else value


def _prepared(recipe, texts, tokenizers, languages, host, check_replaceable=None):
    """Makes the batches of the texts; without `check_replaceable` the run is resumed."""
    datasets, reports = texts.datasets(tokenizers, host)
    digests = texts.digests
    for part, report in reports.items():
        print_lines(f"{part}: {report}")
    if recipe.translates_sentences:
        rules = texts.kinds_of_sources.text_rules
        if recipe.data.noise.upper_case:  # The model learns to read capitals.
            rules = rules._replace(keep_case=False)
        recipe = recipe.with_text_rules(rules)
        if check_replaceable is not None:  # The run of a resumed training has its rules.
            print_lines(f"train: {texts.kinds_of_sources}")
    elif chosen := recipe.decoding.text_rules.to_manifest():
        rule = f"`decoding.{next(iter(chosen))}` needs a model that translates sentences"
        raise InputError(f"{rule}. Received: model.kind={recipe.kind}.")
    dataset = datasets["train"]
    print_lines(
        f"{dataset.steps_per_epoch} steps per epoch, shapes {dataset.shapes}, "
        f"{dataset.real_token_share:.1%} non-padding tokens"
    )
    training = recipe.training
    steps = dataset.steps_per_epoch // training.accumulation_steps * training.epochs
    training = training.with_schedule(steps)
    if (advice := warmup_advice(training, steps)) is not None:
        print_lines(advice)
    named_pairs = texts.first_validation_pairs()
    names, validation = map(list, zip(*named_pairs, strict=True))
    directions = texts.directions("validation", tokenizers)
    has_several = len(recipe.data.corpora("validation")) > 1
    if not recipe.with_sources:  # Samples continue a few words.
        validation = [(" ".join(text.split()[:_PROMPT_WORDS]), text) for _, text in validation]
    return Prepared(
        dataclasses.replace(recipe, training=training),
        tokenizers,
        languages,
        datasets,
        reports,
        digests,
        validation,
        names if has_several else [],
        is_resumed=check_replaceable is None,
        check_replaceable=check_replaceable or (lambda: None),
        validation_directions=[directions[name].codes for name in names if directions],
    )


def origin_of(recipe: Recipe) -> RunFolder | None:
    """Returns the run of `training.start_from`, or None.

    Raises:
        InputError: There is no run, or it has another kind of model or vocabulary.
    """
    if recipe.training.start_from is None:
        return None
    origin = RunFolder.existing(recipe.training.start_from)
    earlier = Recipe.of_run(origin)
    check_equal(origin, {"model.kind": earlier.kind}, {"model.kind": recipe.kind})
    of_run, of_recipe = (
        named("text", dataclasses.asdict(section)) for section in (earlier.text, recipe.text)
    )
    advice = " Delete `text` from the recipe: a vocabulary cannot change."
    check_equal(origin, of_run, of_recipe, advice)
    return origin


def named(section: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a section by their names in a recipe."""
    return {f"{section}.{name}": value for name, value in fields.items()}


def check_equal(
    origin: RunFolder, of_run: Mapping[str, Any], of_recipe: Mapping[str, Any], advice: str = ""
) -> None:
    """Raises `InputError` for options that must equal the run that training starts from."""
    names = [name for name in of_recipe if of_recipe[name] != of_run.get(name)]
    if names:
        values = ", ".join(
            f"{name}={received(of_recipe[name])} instead of {received(of_run.get(name))}"
            for name in names
        )
        rule = "a training that starts from it must have its options"
        raise InputError(f"{origin.path}: {rule}. Received: {values}.{advice}")
