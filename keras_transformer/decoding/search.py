"""From padded source ids to hypotheses: a strategy, its constraints, and the loop."""

import math

import keras
from keras import ops

from keras_transformer import masks
from keras_transformer.decoding import loop
from keras_transformer.decoding.beam import Beam
from keras_transformer.decoding.constraints import Constraints
from keras_transformer.decoding.greedy import Greedy
from keras_transformer.decoding.options import DecodingOptions
from keras_transformer.decoding.sampling import Sampling
from keras_transformer.decoding.settings import length_limits, settings_of

_ROOM_MULTIPLE = 16


class Search:
    """The compiled part of decoding with a `Transformer`, as functions to be compiled.

    Args:
        model: A `Transformer`, or anything with its `start_decoding`, `step_function`,
            `reorder` and `grow`.
        options: `DecodingOptions`.
    """

    def __init__(self, model, options):
        self.model = model
        self.options = options

    def begin(self, source_ids, settings, room, until=None, weights=None, left=0):
        """Encodes, and decodes until all have ended or have `until` tokens.

        Args:
            source_ids: Integer `(batch, source)`, padded with 0.
            settings: `Settings`.
            room: Tokens that the state has room for.
            until: Integer scalar, `room` by default.
            weights: What the model's `step_weights` gave, where that is kept.
            left: Integer scalar: stops already when no more sentences than these go on.

        Returns:
            `Decoding` and the `Hypotheses` that it holds.
        """
        cache = self.model.start_decoding(
            source_ids, room, self.options.beams, with_attention=self.options.with_coverage
        )
        strategy, constraints = self._parts(cache, settings)
        state = loop.start(strategy, cache, constraints, room)
        until = room if until is None else until
        return self._advance(strategy, constraints, state, until, weights, left)

    def proceed(self, state, settings, until, weights=None):
        """Goes on from a state that `begin` or `proceed` left.

        Args:
            state: `Decoding`.
            settings: As it was begun with.
            until: Integer scalar, at most the state's room.
            weights: As in `begin`.

        Returns:
            As `begin`.
        """
        strategy, constraints = self._parts(state.cache, settings)
        state = _with_static_beams(state, self.options.beams)
        return self._advance(strategy, constraints, state, until, weights)

    def grow(self, state, room):
        """The state with room for more tokens."""
        grown = self._grown_hypotheses(state, room)
        return grown._replace(cache=self.model.grow(state.cache, room))

    def _grown_hypotheses(self, state, room):
        strategy = Beam if self.options.beams > 1 and not self.options.sampling else Greedy
        return loop.grow(strategy, state, room)

    def finish(self, state, settings, room, rows):
        """Goes on to the end, with a part of the batch at a time.

        Args:
            state: `Decoding` that `begin` left.
            settings: As it was begun with.
            room: Tokens that each translation has room for in the end.
            rows: Sentences of a part.

        Returns:
            `Hypotheses`.
        """
        strategy, constraints = self._parts(state.cache, settings)
        weights = self.model.step_weights()

        def unfinished(*state):
            return ops.any(loop.Decoding(*state, None).running)

        def body(*before):
            whole = loop.Decoding(*before, None)
            # Those that go on first, and of them those with the same limit together.
            running = ops.any(whole.running, axis=1)
            rank = ops.where(running, ops.cast(constraints.max_lengths, "float32"), -1.0)
            _, chosen = ops.top_k(rank, rows)
            cache = self.model.grow(_rows_of(state.cache, chosen), room)
            part = _rows_of(whole._replace(cache=()), chosen)._replace(cache=cache)
            part, _ = self.proceed(part, _rows_of_settings(settings, chosen), room, weights)
            # Also where a limit beyond the room was asked for: each sentence is in one part.
            part = part._replace(running=ops.zeros_like(part.running))
            # What only fills up the last part had ended, and may be longer than where it began.
            news = ops.take(running, chosen, axis=0)
            return keras.tree.map_structure(
                lambda values, new: _with_rows(values, chosen, new, news), before, tuple(part[:-1])
            )

        grown = self._grown_hypotheses(state, room)
        done = ops.while_loop(unfinished, body, tuple(grown[:-1]))
        return strategy.hypotheses(loop.Decoding(*done, None), constraints)

    def _advance(self, strategy, constraints, state, until, weights, left=0):
        if weights is None:
            one_row = tuple(state.ids.shape[:2]) == (1, 1)
            weights = self.model.step_weights("one" if one_row else "many")
        step = self.model.step_function(
            self.options.attention_layer, self.options.attention_heads, weights
        )
        state = loop.advance(strategy, step, state, constraints, until, self.model.reorder, left)
        return state, strategy.hypotheses(state, constraints)

    def _parts(self, cache, settings):
        source_mask = cache.memory_mask[:, 0, 0]
        return self._strategy(source_mask, settings), self._constraints(source_mask, settings)

    def _strategy(self, source_mask, settings):
        options, numbers = self.options, settings.numbers
        if options.sampling:
            return Sampling(
                settings.seeds,
                options.n_best,
                temperature=numbers[3],
                top_k=settings.integers[0],
                top_p=numbers[4],
                min_p=numbers[5],
                length_penalty=numbers[0],
            )
        if options.beam_size == 1:
            return Greedy(length_penalty=numbers[0])
        return Beam(
            options.beam_size,
            length_penalty=numbers[0],
            n_best=options.n_best,
            coverage_penalty=numbers[1],
            attention=(lambda cache: cache.attention) if options.with_coverage else None,
            source_mask=source_mask,
            num_groups=options.num_groups,
            diversity_penalty=numbers[2],
        )

    def _constraints(self, source_mask, settings):
        numbers, integers = settings.numbers, settings.integers
        lengths = ops.sum(ops.cast(source_mask, "int32"), axis=1)
        max_lengths = length_limits(lengths, numbers[7], numbers[8], integers[2])
        min_lengths = ops.cast(ops.cast(lengths, "float32") * numbers[6], "int32")
        if settings.prefixes is not None:
            # What is forced comes on top of what may follow, up to the absolute limit.
            forced = ops.sum(ops.cast(masks.padding_mask(settings.prefixes), "int32"), axis=1)
            max_lengths = length_limits(
                lengths, numbers[7], numbers[8] + ops.cast(forced, "float32"), integers[2]
            )
        return Constraints(
            max_lengths,
            ops.maximum(min_lengths, integers[1]),
            settings.prefixes,
            settings.logit_bias,
            self.options.no_repeat_ngram_size,
        )


def _with_static_beams(state, beams):
    """A state that came through a compiled function's border, where axes lose their sizes."""

    def static(values):
        return ops.reshape(values, (-1, beams)) if len(values.shape) == 2 else values

    return keras.tree.map_structure(static, state._replace(cache=()))._replace(cache=state.cache)


def _rows_of(structure, rows):
    """Some sentences of a `Decoding`, or of a part of it."""
    return keras.tree.map_structure(
        lambda each: ops.take(each, rows, axis=0) if len(each.shape) else each, structure
    )


def _rows_of_settings(settings, rows):
    """Some sentences' `Settings`; what holds for all stays."""
    given = {
        name: _rows_of(values, rows)
        for name, values in settings._asdict().items()
        if name in ("seeds", "prefixes") and values is not None or isinstance(values, tuple)
    }
    return settings._replace(**given)


def _with_rows(values, rows, new, where):
    """`values` with `new` in some rows, of these in those that `where` says."""
    if not len(values.shape):
        return values
    axes = (-1, *(1 for _ in values.shape[1:]))
    new = ops.where(ops.reshape(where, axes), new, ops.take(values, rows, axis=0))
    return ops.scatter_update(values, ops.expand_dims(rows, 1), new)


def _room(padded_source_length, ratio, max_length):
    """The largest limit that a padded source can have, rounded up to a multiple of 16."""
    if ratio == math.inf:
        return max_length
    if isinstance(padded_source_length, int):
        room = int(ratio * padded_source_length) + 10
    else:
        room = ops.cast(ratio * ops.cast(padded_source_length, "float32"), "int32") + 10
    room = (room + _ROOM_MULTIPLE - 1) // _ROOM_MULTIPLE * _ROOM_MULTIPLE
    return _smaller(room, max_length)


def _first_room(padded_source_length, room):
    # Few translations have more tokens than 1.25 times their source's and 10.
    return _room(padded_source_length, 1.25, room)


def _smaller(size, limit):
    # JAX knows its shapes, and takes nothing but integers for one.
    return min(size, limit) if isinstance(size, int) else ops.minimum(size, limit)


def _larger(size, least):
    return max(size, least) if isinstance(size, int) else ops.maximum(size, least)


def search(
    model,
    source_ids,
    beam_size=4,
    alpha=0.6,
    n_best=1,
    max_length=256,
    in_parts=False,
    **options,
):
    """Translates ids in one graph, by any strategy.

    Args:
        model: A `Transformer`, or anything that `Search` takes.
        source_ids: Integer `(batch, source)`, padded with 0. A row of padding gives nothing.
        beam_size: Hypotheses that stay alive; 1 is greedy search.
        alpha: Exponent of the length penalty. It ranks the hypotheses of a beam; of greedy
            search it changes the score alone.
        n_best: Hypotheses to return, at most `beam_size`.
        max_length: Most tokens of a translation, whatever its source.
        in_parts: Searches in two loops. The first has room for translations a quarter longer than
            the padded sources; the second takes what is left then, or as soon as that is a
            quarter of the batch, a quarter at a time. Short translations wait less for long ones
            and do without their caches; the graph holds the step twice. Nothing is found
            otherwise.
        **options: Fields of `DecodingOptions`, and `settings`: `Settings` that may hold tensors,
            instead of those that the options make.

    Returns:
        `Hypotheses`.

    Raises:
        ValueError: The translations could be longer than the model's learned positions.
    """
    settings = options.pop("settings", None)
    options = DecodingOptions(
        beam_size=beam_size, length_penalty=float(alpha), n_best=n_best, **options
    )
    if settings is None:
        settings = settings_of(options, max_length)
        if options.sampling:
            seeds = ops.full((ops.shape(source_ids)[0],), options.seed, "int32")
            settings = settings._replace(seeds=seeds)
    longest = max_length if options.max_length is None else options.max_length
    batch, source = ops.shape(source_ids)
    room = _room(source, options.max_length_ratio, longest)
    config = getattr(model, "config", None)
    if not isinstance(room, int) and getattr(config, "positions", None) == "learned":
        if longest > config.max_length:
            raise ValueError(
                "Decoding must end within the learned positions. Received: "
                f"max_length={longest}, the model's max_length={config.max_length}."
            )
    first_room = _first_room(source, room)
    if settings.prefixes is not None:
        forced = ops.shape(settings.prefixes)[1]
        room, first_room = _smaller(room + forced, longest), first_room + forced
    run = Search(model, options)
    if not in_parts:
        return run.begin(source_ids, settings, room)[1]
    state, _ = run.begin(source_ids, settings, _smaller(first_room, room), left=batch // 4)
    return run.finish(state, settings, room, _larger(batch // 4, 1))
