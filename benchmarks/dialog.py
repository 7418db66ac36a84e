"""Worth of context to a chatbot: perplexity of responses after 1, 2, 3 and all last turns.

    python -m benchmarks.dialog --data PATH/TO/dialog/valid.tsv --model runs/dialog_multi …

Each run is asked for the probability of every response after so many turns of its context, the
last ones; those that are too many for the model are dropped, the oldest first. The perplexity is
that of a word and of a token, and can be compared across runs by word. Prints JSON, and a table.
"""

import argparse
import json
import pathlib

from keras_transformer import Translator
from keras_transformer.data import read_pairs
from keras_transformer.text.dialog import Conversation
from keras_transformer.training import perplexity

LENGTHS = (1, 2, 3, None)


def responses_after(translator, contexts, responses, turns):
    """The perplexity of the responses, each after the last `turns` turns of its context."""
    conversation, sources = Conversation(translator), []
    for context in contexts:
        said = translator.turns.split(context)
        conversation.history = said[-turns if turns else 0 : -1]
        sources.append(conversation.source(said[-1]))
    return perplexity(translator.score(sources, responses), translator.engine.target_tokenizer)


def after_each(translator, contexts, responses):
    """Returns the figures for all of `LENGTHS`."""
    return {
        str(turns or "all"): responses_after(translator, contexts, responses, turns)
        for turns in LENGTHS
    }


def main():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.dialog", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--data", required=True, help="context<TAB>response, a pair a line")
    parser.add_argument("--model", required=True, nargs="+", help="run folders")
    parser.add_argument("--limit", type=int, help="pairs that are taken, the first; default: all")
    options = parser.parse_args()
    contexts, responses = (side[: options.limit] for side in read_pairs(options.data))
    found = {
        pathlib.Path(model).name: after_each(Translator.load(model), contexts, responses)
        for model in options.model
    }
    print(json.dumps(found, indent=2))
    print("| run | " + " | ".join(f"{turns or 'all'} turns" for turns in LENGTHS) + " |")
    print("|---" * (len(LENGTHS) + 1) + "|")
    for name, rows in found.items():
        values = " | ".join(str(row["perplexity_per_word"]) for row in rows.values())
        print(f"| {name} | {values} |")


if __name__ == "__main__":
    main()
