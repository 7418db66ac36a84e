"""Counts tokens with the tokenizers that a SavedModel has inside."""

_TOKENIZE, _DETOKENIZE = "SentencepieceTokenizeOp", "SentencepieceDetokenizeOp"


class TokenCounter:
    """SentencePiece models read out of a graph, for the metrics and the warm-up.

    Args:
        graph: `MetaGraphDef`. Without tensorflow-text's operations nothing is counted.
    """

    def __init__(self, graph):
        models = _models(graph)
        self._source = models.get(_TOKENIZE)
        self._target = models.get(_DETOKENIZE)

    def sources(self, texts):
        """Tokens in a list of sources, bytes each; 0 where there is no tokenizer."""
        return _count(self._source, texts)

    def targets(self, texts):
        """Tokens in a list of translations."""
        return _count(self._target, texts)

    def text_of(self, count):
        """A text of about `count` tokens, exactly so many where there is a tokenizer."""
        if self._source is None or not count:
            return " ".join(["a"] * count).encode("utf-8")
        for piece in range(self._source.vocab_size()):
            text = self._source.decode([piece] * count)
            if text.strip() and self._source.encode(text) == [piece] * count:
                return text.encode("utf-8")
        return " ".join(["a"] * count).encode("utf-8")


def _count(tokenizer, texts):
    if tokenizer is None:
        return 0
    # As bytes, as the graph has them: U+FFFD for a broken character would be a space.
    return sum(map(len, tokenizer.encode(texts)))


def _models(graph):
    import sentencepiece

    bodies = [graph.graph_def.node, *(each.node_def for each in graph.graph_def.library.function)]
    models = {}
    for body in bodies:
        names = {node.name: node for node in body}
        for node in body:
            if node.op in (_TOKENIZE, _DETOKENIZE) and node.op not in models and node.input:
                # In a function an input is `name:output:index`.
                maker = names.get(node.input[0].split(":")[0].lstrip("^"))
                if maker is not None and maker.op == "SentencepieceOp":
                    models[node.op] = sentencepiece.SentencePieceProcessor(
                        model_proto=maker.attr["model"].s
                    )
    return models
