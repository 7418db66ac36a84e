"""What the live model answers to the calls that an export is verified with."""

import dataclasses
import warnings

from keras_transformer.config import EOS_ID, PAD_ID
from keras_transformer.decoding.compiled import bucket, length_buckets, pad
from keras_transformer.export.graph_batches import CHUNK_SIZE
from keras_transformer.export.verification_texts import verification_batches

# Two kinds of sampling in turns: the options are inputs, one for each sentence.
_SAMPLING = (
    {"temperature": 1.0, "top_k": 0, "top_p": 1.0},
    {"temperature": 0.75, "top_k": 7, "top_p": 0.875},
)


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of a signature.

    Attributes:
        signature: Its name.
        inputs: A dict of nested lists.
        texts: The source texts that it is made of.
    """

    signature: str
    inputs: dict
    texts: tuple


def call_batches(texts, tokenizer, max_source_length):
    """The texts in named batches, for the calls of an export.

    Args:
        texts: A list of strings.
        tokenizer: `Tokenizer` of the source side.
        max_source_length: Tokens at which a text is cut.

    Returns:
        A dict of lists of strings: `all` the texts with blank and foreign ones; `too_long`, one
        that is cut; `many`, 224 texts of one padded length, for which one program does, and of
        these `few` and `one`; `none`.
    """
    none, too_long, _, one, *rest = verification_batches(texts, tokenizer, max_source_length)
    buckets = length_buckets(max_source_length)
    by_length = {}
    for text in texts or one:
        length = len(tokenizer.tokenize(text)) + 1
        by_length.setdefault(bucket(length, buckets), []).append(text)
    most = max(by_length.values(), key=len)
    many = [most[i % len(most)] for i in range(7 * CHUNK_SIZE)]
    return {
        "all": sum(rest, []),
        "too_long": too_long,
        "many": many,
        "few": many[:CHUNK_SIZE],
        "one": many[:1],
        "none": none,
    }


# Each shape of each program is compiled twice in the fresh process and once here: the signatures
# that have programs of their own see one length. `many` comes before `one`, which is part of it.
_BATCHES = {
    "serving_default": ("too_long", "all", "many", "one", "none"),
    "greedy": ("many", "one", "none"),
    "beam": ("many", "one", "none"),
    "sample": ("many", "one", "none"),
    "score": ("few", "one", "none"),
    "align": ("few", "one", "none"),
    "serving_ids": ("too_long", "many", "one", "none"),
}


def teacher_forced(engine, sources, targets, length_penalty):
    """The live model's scores of what an export found.

    Args:
        engine: `ModelEngine`.
        sources: A list of strings; what is too long is cut as exports cut it.
        targets: A list of as many strings, or lists of ids as they were found.
        length_penalty: As exported.

    Returns:
        A list of `Translation`.
    """
    source_ids = engine.source_tokenizer.tokenize(sources, add_eos=True)
    target_ids = [
        engine.target_tokenizer.tokenize(each, add_eos=True) if isinstance(each, str) else each
        for each in targets
    ]
    return engine.score(
        [_cut(each, engine.max_source_length) for each in source_ids],
        [_cut(each, engine.max_target_length) for each in target_ids],
        length_penalty=length_penalty,
    )


class LiveAnswers:
    """Makes calls for an export, and answers them with the live engine.

    Args:
        engine: `ModelEngine`.
        beam_size: As exported.
        length_penalty: As exported.
        texts: A list of strings.
        batch_size: Most sentences that the live engine searches at once.
    """

    def __init__(self, engine, beam_size, length_penalty, texts, batch_size=CHUNK_SIZE):
        self._engine, self._beam_size = engine, beam_size
        self._common = {
            "length_penalty": length_penalty,
            "long_input": "truncate",
            "batch_size": batch_size,
        }
        limit = engine.max_source_length
        self._batches = call_batches(texts, engine.source_tokenizer, limit)
        self._found = {}

    def calls(self, signatures):
        """A list of `Call`s of some signatures."""
        return [
            Call(name, self._inputs(name, self._batches[batch]), tuple(self._batches[batch]))
            for name in signatures
            for batch in _BATCHES[name]
        ]

    def _inputs(self, signature, texts):
        if signature == "serving_ids":
            ids = self._engine.source_tokenizer.tokenize(texts, add_eos=True)
            return {"source_ids": pad(ids, len(ids), max(map(len, ids), default=0)).tolist()}
        if signature == "score":
            return {"source": texts, "target": [_reversed(text) for text in texts]}
        if signature == "sample":
            chosen = [_SAMPLING[place % 2] for place in range(len(texts))]
            options = {name: [each[name] for each in chosen] for name in _SAMPLING[0]}
            return {"text": texts, "seed": [7919 * i for i in range(len(texts))], **options}
        return {"text": texts}

    def answer(self, call):
        """The outputs that the export must give, as a dict of nested lists."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # A text that is cut is among them on purpose.
            return getattr(self, f"_{call.signature}")(call)

    def _translated(self, texts, seeds=None, **options):
        """Translations; each text is translated once, since its batch-mates do not matter."""
        found = self._found.setdefault(tuple(sorted(options.items())), {})
        keys = list(zip(texts, seeds or [0] * len(texts), strict=True))
        new = [key for key in dict.fromkeys(keys) if key not in found]
        if new:
            new_texts, new_seeds = zip(*new, strict=True)
            seed = {} if seeds is None else {"seed": new_seeds}
            results = self._engine.translate(list(new_texts), **options, **seed, **self._common)
            found.update(zip(new, results, strict=True))
        return [found[key] for key in keys]

    def _searched(self, call, **options):
        # As many hypotheses for all: another number would be another program.
        beams = {"beam_size": self._beam_size, "n_best": self._beam_size}
        return self._translated(call.texts, **beams, **options)

    def _serving_default(self, call):
        found = _outputs(self._searched(call))
        return {name: found[name] for name in ("translation", "score")}

    def _greedy(self, call):
        return _outputs(self._translated(call.texts, beam_size=1))

    def _beam(self, call):
        return _outputs(self._searched(call), self._beam_size)

    def _sample(self, call):
        results = [None] * len(call.texts)
        for kind, options in enumerate(_SAMPLING):
            texts, seeds = call.texts[kind::2], call.inputs["seed"][kind::2]
            results[kind::2] = self._translated(texts, seeds, sampling=True, **options)
        return _outputs(results)

    def _score(self, call):
        engine = self._engine
        sides = (
            (engine.source_tokenizer, engine.max_source_length),
            (engine.target_tokenizer, engine.max_target_length),
        )
        ids = [
            [_cut(each, limit) for each in tokenizer.tokenize(texts, add_eos=True)]
            for (tokenizer, limit), texts in zip(sides, call.inputs.values(), strict=True)
        ]
        found = engine.score(*ids, length_penalty=self._common["length_penalty"])
        return {name: [getattr(each, name) for each in found] for name in _SCORES}

    def _align(self, call):
        found = self._searched(call, alignment=True)
        return {
            **_outputs(found),
            "source_tokens": _padded([each.source_tokens for each in found]),
            "target_tokens": _padded([each.tokens for each in found]),
            "alignment": [
                [] if each.alignment is None else each.alignment.tolist() for each in found
            ],
        }

    def _serving_ids(self, call):
        found = self._searched(call)
        width = max((len(each.ids) for each in found), default=0)
        return {
            "ids": [[*each.ids, *[PAD_ID] * (width - len(each.ids))] for each in found],
            "score": [each.score for each in found],
        }


_SCORES = ("log_probability", "score")


def _outputs(translations, n_best=None):
    """The outputs of a signature from `Translation`s; nested where `n_best` is given."""
    rows = [(each, *each.alternatives) for each in translations]
    if n_best is None:
        translated = {name: [getattr(best, name) for best, *_ in rows] for name in _SCORES}
        return {"translation": [best.text for best, *_ in rows], **translated}
    missing = {"text": "", "log_probability": float("-inf"), "score": float("-inf")}

    def of(name):
        return [
            [getattr(row[i], name) if i < len(row) else missing[name] for i in range(n_best)]
            for row in rows
        ]

    return {"translation": of("text"), **{name: of(name) for name in _SCORES}}


def _reversed(text):
    """A target for a source: any text is one."""
    return " ".join(reversed(text.split()))


def _cut(ids, limit):
    return [*ids[: limit - 1], EOS_ID] if len(ids) > limit else ids


def _padded(rows):
    width = max(map(len, rows), default=0)
    return [[*row, *[""] * (width - len(row))] for row in rows]
