"""A tokenizer's rules of normalization, less those that no text can tell."""

import functools

_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
# What the operations turn into `_SPACE` after all rules.
_WHITE = " \t\r\n"


# A search for greedy and one for beam, with two tokenizers each.
@functools.lru_cache(maxsize=2)
def without_needless_rules(model_bytes):
    """The same tokenizer for tensorflow-text's operations, smaller.

    SentencePiece's rule sets cover all of Unicode, 225,276 rules in 240 kB, of which a vocabulary
    of European languages needs a hundredth. A rule from characters that are in no piece to others
    that are in none changes nothing: the piece for the unknown stands for either, and once for
    several in a row.

    Args:
        model_bytes: A serialized SentencePiece model.

    Returns:
        The same with fewer rules, bytes: it gives the same ids for all texts.

    Raises:
        ImportError: SentencePiece is too old to list its rules; a newer one comes with the extra
            `litert`.
    """
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2 as schema

    model = schema.ModelProto.FromString(bytes(model_bytes))
    specification = model.normalizer_spec
    if not specification.precompiled_charsmap:
        return model_bytes
    if not hasattr(sentencepiece.SentencePieceNormalizer, "Decompile"):
        raise ImportError(
            'A newer SentencePiece is needed: pip install "keras_transformer[litert]".'
        )
    rules = sentencepiece.SentencePieceNormalizer(model_proto=model_bytes).Decompile()
    kinds = schema.ModelProto.SentencePiece
    pieces = (
        each.piece for each in model.pieces if each.type in (kinds.NORMAL, kinds.USER_DEFINED)
    )
    kept = needed_rules(rules, {_SPACE, *_WHITE}.union(*pieces))
    if len(kept) in (0, len(rules)):
        return model_bytes
    smaller = schema.NormalizerSpec.FromString(
        sentencepiece.SentencePieceNormalizer(norm_map=kept).serialized_normalizer_spec()
    )
    specification.precompiled_charsmap = smaller.precompiled_charsmap
    return model.SerializeToString()


def needed_rules(rules, known):
    """The rules without which some text would get other ids.

    Args:
        rules: A list of pairs of strings, what is replaced and by what. At each place of a text
            the longest that fits is taken.
        known: A set of the characters that pieces are made of.

    Returns:
        The list of those rules that are needed.

    Example:

    >>> needed_rules([("Ａ", "A"), ("ｶ", "カ")], {"A"})
    [('Ａ', 'A')]
    """
    needed, others = [], []
    for rule in rules:
        foreign = rule[1] and known.isdisjoint(rule[0]) and known.isdisjoint(rule[1])
        (others if foreign else needed).append(rule)
    while True:
        # Where a rule for several characters is missing, one that begins among them would act.
        first = {source[0] for source, _ in needed}
        hidden = {rule for rule in others if len(rule[0]) > 1 and not first.isdisjoint(rule[0])}
        if not hidden:
            return needed
        needed += hidden
        others = [rule for rule in others if rule not in hidden]
