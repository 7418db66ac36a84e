"""Run folder with its recipe, and what a resumed training may change in the recipe."""

from keras_transformer.base.errors import InputError
from keras_transformer.runs.run_files import RunFiles
from keras_transformer.text import Labels, Tokenizer
from keras_transformer.text.languages import Languages
from keras_transformer.training.recipe import Recipe

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


class RunFolder(RunFiles):
    """A run folder with its recipe as a `Recipe`; `RunFiles` has its other methods."""

    def create(
        self,
        recipe: Recipe,
        tokenizers: tuple[Tokenizer, Tokenizer | Labels],
        digests: dict,
        languages: Languages | None = None,
    ) -> None:
        """Writes the files of a run that exist before the first step; see `write_start`.

        Raises:
            InputError: The folder cannot be made.
        """
        self.write_start(recipe.to_dict(), tokenizers, digests, languages)

    def write_recipe(self, recipe: Recipe) -> None:
        """Writes `recipe.yaml`."""
        self.write_sections(recipe.to_dict())

    def recipe(self) -> Recipe:
        """Returns the run's `Recipe`."""
        return Recipe.from_dict(self.sections(), where=str(self.recipe_file))


def check_resumable(folder: RunFolder, recipe: Recipe) -> None:
    """Raises `InputError` if `recipe` differs from the run's in a field that must not change."""
    run_options, new_options = folder.recipe().to_dict(), recipe.to_dict()
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
