"""Texts of a recipe: pairs, checksums, tokenizers and batches."""

import collections
import dataclasses
import functools
import hashlib
import itertools
import pathlib
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import numpy as np

from keras_transformer.base.errors import InputError
from keras_transformer.base.reading import check_rereadable, iterate_lines
from keras_transformer.data import (
    LabelledDataset,
    PairChecks,
    PairReport,
    ParallelDataset,
    iterate_pairs,
)
from keras_transformer.data.encoding import (
    CHUNK_LINES,
    Lines,
    PairEncoder,
    encode_parts,
    in_chunks,
)
from keras_transformer.data.noise import PairNoise
from keras_transformer.data.pairs import PairFile, PairTable, open_memory
from keras_transformer.data.placeholders import with_placeholders
from keras_transformer.engine.device import CPU, DevicePlan
from keras_transformer.engine.steps.glossary import Glossary
from keras_transformer.engine.steps.tag import tagged
from keras_transformer.runs.run_folder import RunFolder
from keras_transformer.text import Labels, Tokenizer
from keras_transformer.text.dialog import turns_of
from keras_transformer.text.languages import Direction, Languages, language_pair, languages_of_tags
from keras_transformer.text.symbols import Placeholders
from keras_transformer.text.tags import tag_tokens
from keras_transformer.text.vocabulary import VocabularyOptions
from keras_transformer.training.hosts import SINGLE_HOST, Host
from keras_transformer.training.kinds_of_sources import KindsOfSources
from keras_transformer.training.recipe import Recipe
from keras_transformer.training.recipe_sections import GLOSSARY_SHARE, PARTS, NamedFiles

Tokenizers = tuple[Tokenizer, Tokenizer | Labels]
TextFile = pathlib.Path | PairFile
Digests = dict[str, dict[str, str]]
_BLEU_SENTENCES = 2000
# Each shape costs seconds of compilation, more than its padding costs in an epoch of few steps.
_FEW_STEPS, _FEW_SHAPES = 50, 2


class RecipeTexts:
    """Training and validation text of a recipe, which is read in as few passes as possible.

    One pass over the files gives checksums, ids and the first validation pairs. A second pass gives
    the ids where the first pass has to give the text for a vocabulary. The first pass keeps the
    text for the second in memory, unless `text.sample_sentences` saves memory.

    Args:
        recipe: Recipe of the run.
        tokenizers: Tokenizers that the run has already; None where it learns them.
        check: Function that gets the checksums when the first pass ends, and may raise an error.
        languages: Languages of the run; see `languages_of`.
        plan: Maximum numbers of batch shapes in training, where the recipe names none, and in
            validation.
        chunk_lines: Number of lines that are read and encoded at once.

    Attributes:
        max_shapes: Maximum number of batch shapes in training; known after `datasets`.
    """

    def __init__(
        self,
        recipe: Recipe,
        tokenizers: Tokenizers | None = None,
        check: Callable[[Digests], None] = lambda digests: None,
        languages: Languages | None = None,
        plan: DevicePlan = CPU,
        chunk_lines: int = CHUNK_LINES,
    ):
        self.max_shapes = recipe.training.max_shapes or plan.training_shapes
        self._validation_shapes = plan.validation_shapes
        self.recipe, self._tokenizers, self._check = recipe, tokenizers, check
        self._chunk_lines = chunk_lines
        self._tag_tokens = tag_tokens(recipe.data.tags)
        self._languages = recipe.data.languages if tokenizers is None else languages
        if tokenizers is not None:  # An imported model has other tokens.
            self._tag_tokens |= tokenizers[0].tag_tokens
        self._survey: Survey | None = None
        self._texts: list[Lines] = []

    def files(self, part: str) -> list[TextFile]:
        """Returns all files of `"train"` or `"validation"`."""
        corpora = self.recipe.data.corpora(part)
        files = [file for corpus in corpora for file in self.files_of(corpus) if file]
        if part == "train" and self._glossary_file is not None:
            files.append(self._glossary_file)
        return files

    def files_of(self, corpus: NamedFiles) -> tuple[TextFile, pathlib.Path | None]:
        """Returns a corpus' source and target file; the target is None if one file has both.

        Raises `InputError` for a file that does not exist.
        """
        base = pathlib.Path(self.recipe.data.folder)
        source = base / corpus.source
        target = None if corpus.target is None else base / corpus.target
        for path in (source, target):
            if path is not None and not path.exists():
                rule = f"{path}: no such file. The files of a recipe are in `data.folder`"
                raise InputError(f"{rule}. Received: data.folder={str(base)!r}.")
        if corpus.is_tmx:
            languages = corpus.languages or ""  # never empty: the recipe was checked
            return open_memory(source, languages, corpus.inline_tags), None
        if corpus.header is not None:
            return PairTable(source, corpus.header), None
        return source, target

    def lines(self, parts: Collection[str] = PARTS) -> Iterator[Lines]:
        """Yields the lines of the parts, corpus after corpus."""
        if self._survey is None:
            every_line: Iterable[Lines] = self._surveyed()
        else:
            every_line = self._texts or self._read(parts)
        yield from (lines for lines in every_line if lines.part in parts)

    def _surveyed(self):
        """Yields the lines of all parts in the first pass, which ends with their survey."""
        learns, texts, survey = self._tokenizers is None, list[Lines](), Survey(self.recipe)
        saves_memory = self.recipe.text.sample_sentences is not None
        if not learns or saves_memory:
            for file in itertools.chain.from_iterable(map(self.files, PARTS)):
                check_rereadable(file)
        for lines in self._read(PARTS):
            survey.add(lines)
            if learns and not saves_memory:
                texts.append(lines)
            yield lines
        self._survey, self._texts = survey, texts
        self._check(self.digests)

    @property
    def survey(self) -> "Survey":
        """Results of the first pass, which takes place now unless it has."""
        if self._survey is None:
            collections.deque(self._surveyed(), maxlen=0)
        assert self._survey is not None
        return self._survey

    def _read(self, parts):
        """Yields the lines of the files of the parts."""
        held_out = self.recipe.data.hold_out_every
        for part in PARTS if held_out is None else PARTS[:1]:
            for corpus in self.recipe.data.corpora(part) if held_out or part in parts else ():
                stream = self._stream(*self.files_of(corpus))
                for numbers, pairs in in_chunks(stream, self._chunk_lines):
                    tokens = self._tag_tokens.get(corpus.tag), self._language_token(corpus)
                    pairs = self._with_symbols(pairs, dict.fromkeys(tokens))
                    if held_out is None:
                        yield Lines(part, corpus.name, numbers, pairs)
                        continue
                    is_held_out = numbers % held_out == 0
                    for name, mask in zip(PARTS, (~is_held_out, is_held_out), strict=True):
                        chosen = list(itertools.compress(pairs, mask))
                        yield Lines(name, corpus.name, numbers[mask], chosen)

    def _stream(self, source, target):
        recipe = self.recipe
        if not recipe.with_sources:
            return (("", line) for line in iterate_lines(source))
        pairs = iterate_pairs(source, target)
        if recipe.gives_labels and target is None:
            return ((text, label) for label, text in pairs)
        turns = turns_of(recipe.text.turn_separator, recipe.data.context_turns)
        return pairs if turns is None else _join(pairs, turns, target or source)

    def _language_token(self, corpus):
        """Returns the token of a corpus' direction, None if the model has no such tokens."""
        if corpus.languages is None or self._languages is None or self._languages_as_ids:
            return None
        direction = self._languages.tokens_of(*language_pair(corpus.languages))
        return next(iter(direction.source_prefix), None)

    @property
    def _languages_as_ids(self):
        """Languages of an imported model that reads ids where no text has a token; else None."""
        languages, tokenizers = self._languages, self._tokenizers
        if languages is None or languages.source_suffix or languages.target_prefix:
            return languages
        # The token of SMaLL-100 is where a tag would be, but no text has this token.
        is_tag = tokenizers is None or languages.are_tags_of(tokenizers[0])
        return None if is_tag else languages

    def directions(self, part: str, tokenizers: Any) -> dict[str, Direction]:
        """Returns the ids around the sentences of each corpus of a part, by the corpus' name.

        Empty where the model reads no languages, or texts begin with their tokens.

        Raises:
            InputError: A corpus does not name its languages, or the model lacks its direction.
        """
        if (languages := self._languages_as_ids) is None:
            return {}
        if noise := self.recipe.data.noise.shares:
            rule = "`data.noise` needs a model whose sources begin with the languages' tokens"
            raise InputError(f"{rule}. Received: {', '.join(noise)}.")
        id_of_source, id_of_target = (tokenizer.id_of for tokenizer in tokenizers)
        directions = {}
        for corpus in self.recipe.data.corpora(part):
            if not corpus.languages:
                rule = f"`data.{part}` needs `languages` such as en-de, which the model reads too"
                codes = ", ".join(languages.codes)
                raise InputError(f"{rule}. Received: none. The model has {codes:.80}.")
            direction = languages.tokens_of(*language_pair(corpus.languages))
            directions[corpus.name] = direction.to_ids(id_of_source, id_of_target)
        return directions

    def _with_symbols(self, pairs, tokens):
        text = self.recipe.text
        placeholders = Placeholders(text.placeholders, text.placeholder_numbers)
        if placeholders.size:
            pairs = [with_placeholders(*pair, placeholders) for pair in pairs]
        for token in filter(None, tokens):
            pairs = [(tagged(source, token), target) for source, target in pairs]
        return pairs

    @functools.cached_property
    def digests(self) -> Digests:
        """SHA-256 checksums of the texts of each part and side, `{part: {side: digest}}`."""
        digests = self.survey.digests
        if self._glossary_file is not None:
            content = "\n".join(iterate_lines(self._glossary_file))
            digests["train"]["glossary"] = hashlib.sha256(content.encode()).hexdigest()
        return digests

    @property
    def kinds_of_sources(self) -> KindsOfSources:
        """Counts of the training sources."""
        return self.survey.kinds

    def first_validation_pairs(self) -> list[tuple[str, tuple[str, str]]]:
        """Returns the first 2,000 validation pairs with their corpora's names, interleaved."""
        pairs = self.survey.validation
        rows = itertools.zip_longest(
            *(zip(itertools.repeat(name), pairs[name], strict=False) for name in pairs)
        )
        return list(filter(None, itertools.chain.from_iterable(rows)))

    def noise(self, tokenizers: Any = (None, None)) -> PairNoise | None:
        """Returns the noise of the training pairs, or None."""
        data, terms = self.recipe.data, None
        if self._glossary_file is not None:
            terms = GLOSSARY_SHARE, self._glossary.in_training
        noise = PairNoise(data.noise, tokenizers, terms)
        return noise if noise.shares else None

    @functools.cached_property
    def _glossary(self):
        return Glossary.load(self._glossary_file)

    @property
    def _glossary_file(self):
        data = self.recipe.data
        return None if data.glossary is None else pathlib.Path(data.folder) / data.glossary

    def tokenizers(self) -> Tokenizers:
        """Returns the tokenizers of both sides; learns them unless the run has them already.

        They are learned from the training texts. A classifier has `Labels` instead of the target's
        tokenizer.
        """
        if self._tokenizers is None:
            self._tokenizers = self._learned()
        return self._tokenizers

    def _learned(self):
        text = self.recipe.text
        names = [field.name for field in dataclasses.fields(VocabularyOptions)]
        options = {name: getattr(text, name) for name in names}

        def learn(*sides, size=text.vocabulary_size):
            options["vocabulary_size"] = size
            symbols = {
                "tags": self.recipe.data.tags,
                "terms": self._glossary_file is not None,
                "languages": tuple(self._languages.tokens.values()) if self._languages else (),
            }
            return Tokenizer.train_from_texts(self._noisy_texts(sides), **symbols, **options)

        if self.recipe.gives_labels:
            return learn(0), Labels.of_texts(self.survey.labels)
        if text.joint:
            joint = learn(0, 1)
            return joint, joint
        _, target_size = text.sizes
        return learn(0), learn(1, size=target_size)

    def _noisy_texts(self, sides):
        """Yields training texts with their noise, so that the vocabulary includes it."""
        noise, random = self.noise(), np.random.default_rng(self.recipe.training.seed)
        for lines in self.lines(["train"]):
            pairs = lines.pairs if noise is None else noise.texts(lines.pairs, random)
            yield from (pair[side] for pair in pairs for side in sides)

    def datasets(
        self, tokenizers: Tokenizers, host: Host = SINGLE_HOST
    ) -> tuple[dict[str, ParallelDataset], dict[str, PairReport]]:
        """Makes this host's rows of the batches of each part, and counts dropped pairs.

        Training pairs that equal a held-out pair are dropped. With several validation corpora, each
        corpus also has its own batches, as `validation/NAME`.

        Raises:
            InputError: The vocabulary of another run lacks a tag or cannot annotate terms.
        """
        data = self.recipe.data
        self._check_vocabulary(tokenizers[0])
        labels: Any = tokenizers[1] if self.recipe.gives_labels else None

        def read(parts):
            for lines in self.lines(parts):
                if labels is not None:
                    self._check_labels(lines, labels)
                yield lines

        encoded = encode_parts(
            read,
            {part: self._encoder(part, tokenizers) for part in PARTS},
            held_out="validation" if data.hold_out_every else None,
        )
        datasets, reports = {}, {}
        for part, (pairs, reports[part]) in encoded.items():
            is_training = part == "train"
            noise = self.noise(tokenizers) if is_training else None
            datasets[part] = self._dataset(pairs, is_training, host, noise=noise)
            can_have_few = is_training and self.recipe.training.max_shapes is None
            if can_have_few and datasets[part].plan.steps_per_pass < _FEW_STEPS:
                self.max_shapes = min(_FEW_SHAPES, self.max_shapes)
                datasets[part] = self._dataset(pairs, is_training, host, noise=noise)
            if is_training or len(pairs.corpora) < 2:
                continue
            for name in filter(pairs.corpora.get, pairs.corpora):
                dataset = self._dataset(pairs.of_corpus(name), False, host, datasets[part].shapes)
                datasets[f"{part}/{name}"] = dataset
        return datasets, reports

    def _check_vocabulary(self, tokenizer):
        if missing_tags := set(self.recipe.data.tags).difference(tokenizer.tags):
            rule = f"The vocabulary has no tag {', '.join(sorted(missing_tags))}"
            raise InputError(f"{rule}: it has {', '.join(tokenizer.tags) or 'none'}.")
        if self._glossary_file is not None and not tokenizer.annotates_terms:
            rule = "`data.glossary` needs a vocabulary that was learned with it"
            raise InputError(f"{rule}: this one cannot annotate terms.")

    def _check_labels(self, lines, labels):
        corpora = {corpus.name: corpus for corpus in self.recipe.data.corpora(lines.part)}
        source, target = self.files_of(corpora[lines.corpus])
        for number, (_, label) in zip(lines.numbers.tolist(), lines.pairs, strict=True):
            labels.check(label, f"{target or source}, line {number}")

    def _encoder(self, part, tokenizers):
        data, is_training, name = self.recipe.data, part == "train", f"`data.{part}`"
        if data.hold_out_every is not None:
            name = f"{part} pairs of `data.hold_out_every: {data.hold_out_every}`"
        checks = PairChecks(
            max_length=data.max_length,
            max_length_ratio=None if self.recipe.gives_labels else data.max_length_ratio,
            drop_duplicates=data.drop_duplicates and is_training,
        )
        directions = self.directions(part, tokenizers)
        options = self.recipe.with_sources, name, self._chunk_lines, directions
        return PairEncoder(tokenizers, checks, *options)

    def _dataset(self, pairs, is_training, host, shapes=None, noise=None):
        data, training = self.recipe.data, self.recipe.training
        # Each shape costs seconds of compilation, more than padding costs on a small set.
        few_shapes = min(self._validation_shapes, self.max_shapes)
        weights = {corpus.name: corpus.weight for corpus in data.corpora("train")}
        rates = [weights[name] for name in pairs.corpora] if is_training else [1.0]
        dataset_class = LabelledDataset if self.recipe.gives_labels else ParallelDataset
        return dataset_class(
            pairs,
            batch_tokens=training.batch_tokens or CPU.batch_tokens,
            max_shapes=self.max_shapes if is_training else few_shapes,
            shuffle=is_training,
            seed=training.seed,
            shapes=shapes,
            accumulation_steps=training.accumulation_steps if is_training else 1,
            host=host.index,
            hosts=host.count,
            shards=host.shards,
            with_sources=self.recipe.with_sources,
            noise=noise,
            max_length=data.max_length,
            rates=None if set(rates) == {1.0} else rates,
            steps_per_epoch=training.steps_per_epoch if is_training else None,
        )


def languages_of(recipe: Recipe, run: RunFolder | None = None, where: str = "") -> Languages | None:
    """Returns the languages of a recipe's model.

    Args:
        recipe: Recipe.
        run: Run that has the tokenizers already, whose model is trained further.
        where: Beginning of a message about a code, such as the path of the recipe.

    Raises:
        InputError: The recipe has several target languages, and the run has no tokens for them. Or
            a code is neither the run's nor a language's.
    """
    named = recipe.data.languages
    languages = None if run is None else run.languages()
    if named is None or (languages is not None and (languages.tokens or not named.tokens)):
        return languages
    if run is None:
        recipe.data.check_codes(where)
        return named
    corpora = recipe.data.corpora("train")
    # Of a memory, languages choose texts, whose tag is another option.
    if named.tokens or any(corpus.languages and not corpus.is_tmx for corpus in corpora):
        languages = languages_of_tags(run.tokenizers()[0].tag_tokens)
    if languages is None and named.tokens:
        rule = f"{run.path}: its vocabulary must have tokens of languages"
        raise InputError(f"{rule}. Received: none. Train a new model of these languages.")
    if languages is None:
        recipe.data.check_codes(where)
    return languages or named


def _join(pairs, turns, file):
    for number, (context, response) in enumerate(pairs, start=1):
        if turns.are_in(response):
            raise InputError(
                f"{file}, line {number}: a target is one turn, without the separator. "
                f"Received: {turns.separator!r} in it."
            )
        yield turns.join(turns.split(context)), response


class Survey:
    """Results of the first pass over the texts, except ids.

    Attributes:
        labels: Labels of a classifier.
        validation: First validation pairs of each corpus, by name.
    """

    def __init__(self, recipe: Recipe):
        self._gives_labels, self.labels = recipe.gives_labels, set[str]()
        self._digests = {
            part: {corpus.name: (hashlib.sha256(), hashlib.sha256()) for corpus in corpora}
            for part in PARTS
            for corpora in [recipe.data.corpora(part)]
        }
        self.validation: dict[str, list] = {name: [] for name in self._digests["validation"]}
        self.kinds = KindsOfSources()
        self._limit = -(-_BLEU_SENTENCES // len(self.validation))

    def add(self, lines: Lines) -> None:
        """Takes what is needed of some lines."""
        sides = [[pair[side] for pair in lines.pairs] for side in (0, 1)]
        for digest, texts in zip(self._digests[lines.part][lines.corpus], sides, strict=True):
            digest.update("".join(f"{text}\n" for text in texts).encode("utf-8"))
        if lines.part == "validation":
            pairs = self.validation[lines.corpus]
            pairs += lines.pairs[: self._limit - len(pairs)]
            return
        self.kinds.add(lines.pairs)
        if self._gives_labels:
            self.labels.update(sides[1])

    @property
    def digests(self) -> Digests:
        """Checksums of the lines so far; see `RecipeTexts.digests`."""
        return {
            part: {
                f"{name}.{side}" if name else side: digest.hexdigest()
                for name, both in of_part.items()
                for side, digest in zip(("source", "target"), both, strict=True)
            }
            for part, of_part in self._digests.items()
        }
