"""Base class of engines that read token ids: tokenizes, splits long texts, adds alignments."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from keras_transformer.base.errors import InputError
from keras_transformer.engine import inputs
from keras_transformer.engine.engine import Engine, sum_of
from keras_transformer.engine.inputs import Job
from keras_transformer.engine.request import Request
from keras_transformer.text.directions import Directions
from keras_transformer.text.per_text import checked_list, repeated, seed_of_part
from keras_transformer.text.sentences import space_after


class IdsEngine(Engine):
    """Base class of engines that read and return token ids; a subclass has both tokenizers.

    `search` returns hypotheses with ids, scores and log-probabilities, and without texts and
    tokens. `score_pairs` returns the log-probabilities of the target's tokens, and the alignment if
    its request has it. `align` and `stream_ids` are for the capabilities `align` and `stream`.
    """

    def align(
        self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], request: Request
    ) -> list[np.ndarray]:
        """Returns the alignment `(target, source)` of each pair of source ids and target ids."""
        raise NotImplementedError(f"{type(self).__name__} has no `align`.")

    def stream_ids(self, job: Job, request: Request) -> Iterator[list[int]]:
        """Yields the ids of one translation so far, after each token."""
        raise NotImplementedError(f"{type(self).__name__} has no `stream_ids`.")

    @property
    def directions(self) -> Directions:
        return Directions(self.languages, self.source_tokenizer, self.target_tokenizer)

    def _max_text_lengths(self, directions):
        """Returns each text's maximum number of tokens without the tokens of its languages."""
        return [self.max_source_length - direction.num_added for direction in directions]

    def _jobs(self, texts, request, directions, prefixes=None, phrases=None):
        """Returns the jobs of the parts of all texts, and the indices of each text's parts."""
        limits = self._max_text_lengths(directions)
        if not self.reads_sources:  # The limit of a language model's text includes its source.
            limits = [min(limit, request.options.resolve_max_length(limit)) for limit in limits]
        sources, parts = inputs.source_ids(
            self._last_turns(texts),
            self.source_tokenizer,
            limits,
            request.long_input,
            self.turn_id,
            self.long_inputs,
            stacklevel=4,
        )
        seeds = repeated("seed", request.options.seed, len(texts))
        prefixes = self._prefix_ids(prefixes, len(texts), request)
        phrases = inputs.phrase_ids(phrases, len(texts), self.target_tokenizer)
        jobs = []
        for index, indices in enumerate(parts):
            if phrases[index] and len(indices) > 1:
                rule = "`phrases` are for texts that are not split."
                raise InputError(f"{rule} Received: a text of {len(indices)} parts.", index)
            for part in indices:
                number, direction = part - indices[0], directions[index]
                prefix = () if number else prefixes[index]
                source, seed = direction.source(sources[part]), seed_of_part(seeds[index], number)
                jobs.append(Job(source, seed, prefix, phrases[index], direction))
        return jobs, parts

    def _prefix_ids(
        self, prefixes: Sequence[str] | None, count: int, request: Request
    ) -> list[Sequence[int]]:
        """Returns the ids that each of `count` translations begins with."""
        if prefixes is None:
            return [()] * count
        prefixes = checked_list("target_prefixes", prefixes)
        if not self.reads_sources and any(prefixes):
            raise InputError(
                "A language model's texts begin with what they continue: `target_prefixes` is not "
                f"for them. Received: {prefixes!r:.60}."
            )
        limit = request.options.resolve_max_length(self.max_target_length)
        return inputs.prefix_ids(prefixes, count, self.target_tokenizer, limit)

    def _last_turns(self, texts):
        """Returns the sources with as many turns as the model was trained on; ids unchanged."""
        turns = self.turns
        if turns is None or turns.max_turns is None:
            return texts
        return [turns.join(turns.split(text)) if isinstance(text, str) else text for text in texts]

    def _with_texts(self, hypotheses, job):
        texts = self.target_tokenizer.detokenize([list(row.ids) for row in hypotheses])
        source_ids = job.direction.of_source(job.source)
        source_tokens = tuple(self.source_tokenizer.pieces_of(source_ids))
        return [
            self._with_text(hypothesis, text, source_tokens)
            for hypothesis, text in zip(hypotheses, texts, strict=True)
        ]

    def _with_text(self, translation, text, source_tokens):
        tokens = tuple(self.target_tokenizer.pieces_of(translation.ids))
        return dataclasses.replace(
            translation, text=text, tokens=tokens, source_tokens=source_tokens
        )

    def _aligned(self, translations, jobs, request):
        """Adds the alignments of a request, in one more pass that forces the translations."""
        rows = [
            (job, hypothesis.ids)
            for job, best in zip(jobs, translations, strict=True)
            for hypothesis in (best, *best.alternatives)
        ]
        pairs = [(job.source, job.direction.target(ids)) for job, ids in rows]
        alignments = zip(self.align(pairs, request) if pairs else (), rows, strict=True)

        def aligned(translation):
            alignment, (job, _) = next(alignments)
            return dataclasses.replace(translation, alignment=job.direction.of_alignment(alignment))

        # In the order of `pairs`: each best hypothesis before its alternatives.
        return [
            dataclasses.replace(aligned(best), alternatives=tuple(map(aligned, best.alternatives)))
            for best in translations
        ]

    def _scored_targets(self, sources, targets, directions, request):
        source_ids, _ = inputs.ids_and_texts(
            "sources",
            self._last_turns(sources),
            self.source_tokenizer,
            self._max_text_lengths(directions),
        )
        target_ids, targets = inputs.ids_and_texts(
            "targets", targets, self.target_tokenizer, self.max_target_length
        )
        pairs = [
            (direction.source(source), direction.target(target))
            for source, target, direction in zip(source_ids, target_ids, directions, strict=True)
        ]
        scored = self.score_pairs(pairs, request) if pairs else []
        return [
            self._with_score(*row, request.options)
            for row in zip(scored, targets, source_ids, target_ids, directions, strict=True)
        ]

    def _with_score(self, scored, text, source, target, direction, search_options):
        """Returns the translation of a given target."""
        by_token = direction.of_target(scored.token_log_probabilities)
        total = sum_of(by_token)
        scored = dataclasses.replace(
            scored,
            ids=tuple(target),
            log_probability=total,
            token_log_probabilities=by_token,
            score=search_options.ranking.score(total, len(target)),
            alignment=direction.of_alignment(scored.alignment),
        )
        return self._with_text(scored, text, tuple(self.source_tokenizer.pieces_of(source)))

    def _stream(self, jobs, request):
        earlier_parts = ""
        for job in jobs:
            part = last = ""
            for ids in self.stream_ids(job, request):
                part = self.target_tokenizer.detokenize([ids])[0]
                # Characters of several bytes are withheld until they are complete.
                text = part.rstrip("\ufffd")
                if text != last:
                    yield earlier_parts + text
                    last = text
            if part != last:
                yield earlier_parts + part
            if part:  # As `Translation.joined` joins parts.
                earlier_parts += part + space_after(" ", part)
