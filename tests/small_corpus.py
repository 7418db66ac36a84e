"""32 pairs of real sentences, and a recipe that trains on them in seconds."""

import yaml

_LINES = """\
Two dogs play in the snow.|Zwei Hunde spielen im Schnee.
A man rides a bicycle.|Ein Mann fährt Fahrrad.
A woman reads a book.|Eine Frau liest ein Buch.
Children run across a field.|Kinder laufen über ein Feld.
A girl eats an apple.|Ein Mädchen isst einen Apfel.
The old man sleeps.|Der alte Mann schläft.
A boy jumps into the water.|Ein Junge springt ins Wasser.
Three people sit on a bench.|Drei Personen sitzen auf einer Bank.
A cat looks out of the window.|Eine Katze schaut aus dem Fenster.
The train stops at the station.|Der Zug hält am Bahnhof.
A musician plays the guitar.|Ein Musiker spielt Gitarre.
Workers repair a road.|Arbeiter reparieren eine Straße.
A horse stands behind a fence.|Ein Pferd steht hinter einem Zaun.
The market is full of people.|Der Markt ist voller Menschen.
A chef cuts vegetables.|Ein Koch schneidet Gemüse.
A bird sits in a tree.|Ein Vogel sitzt in einem Baum.
Two women talk on the street.|Zwei Frauen unterhalten sich auf der Straße.
A child builds a sandcastle.|Ein Kind baut eine Sandburg.
The boat lies in the harbour.|Das Boot liegt im Hafen.
A man paints a wall white.|Ein Mann streicht eine Wand weiß.
A team celebrates its victory.|Eine Mannschaft feiert ihren Sieg.
The teacher writes on the board.|Der Lehrer schreibt an die Tafel.
A family has breakfast.|Eine Familie frühstückt.
A dog catches a red ball.|Ein Hund fängt einen roten Ball.
A climber hangs on a rope.|Ein Kletterer hängt an einem Seil.
People wait for the bus.|Leute warten auf den Bus.
A dancer turns on the stage.|Eine Tänzerin dreht sich auf der Bühne.
A farmer feeds his cows.|Ein Bauer füttert seine Kühe.
The girl wears a yellow coat.|Das Mädchen trägt einen gelben Mantel.
A surfer rides a big wave.|Ein Surfer reitet eine große Welle.
A baby laughs at its mother.|Ein Baby lacht seine Mutter an.
Friends cook dinner together.|Freunde kochen zusammen Abendessen.
"""
PAIRS = [tuple(line.split("|")) for line in _LINES.splitlines()]


def write_corpus(folder):
    """Writes `train.en` and `train.de`."""
    folder.mkdir(parents=True, exist_ok=True)
    for side, name in enumerate(("train.en", "train.de")):
        text = "".join(pair[side] + "\n" for pair in PAIRS)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def recipe_values(corpus, **training):
    """The dict of a recipe over a folder that `write_corpus` made."""
    files = {"source": "train.en", "target": "train.de"}
    model = {"model_dim": 64, "num_heads": 2, "intermediate_dim": 128, "dropout": 0.0}
    model |= {"num_encoder_layers": 1, "num_decoder_layers": 1, "normalize_first": True}
    steps = {"epochs": 2, "batch_tokens": 512, "max_shapes": 1, "warmup_steps": 100}
    return {
        "data": {"folder": str(corpus), "train": files, "validation": files},
        "text": {"vocabulary_size": 150},
        "model": model,
        "training": {**steps, "sample_translations": 0, **training},
        "decoding": {"beam_size": 2, "max_source_length": 48, "max_target_length": 32},
    }


def write_recipe(path, values):
    """Writes a recipe as YAML."""
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path
