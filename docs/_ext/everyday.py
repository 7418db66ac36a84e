"""Everyday sentences in English and German, made by rule: a corpus that needs no download.

The order of the words differs between the languages. German puts the verb second, and an infinitive
last: "My sister wants to buy bread at the market today." is "Meine Schwester will heute auf dem
Markt Brot kaufen." Sentences are drawn from 400,000, so nearly all of a test's are new.
"""

import random
from collections.abc import Iterator

# English, German, and the person of the verb: "ich", "er" or "wir".
_SUBJECTS = [
    ("I", "ich", "ich"),
    ("we", "wir", "wir"),
    ("they", "sie", "wir"),
    ("my brother", "mein Bruder", "er"),
    ("my sister", "meine Schwester", "er"),
    ("our neighbour", "unser Nachbar", "er"),
    ("her parents", "ihre Eltern", "wir"),
    ("his friends", "seine Freunde", "wir"),
    ("the children", "die Kinder", "wir"),
]
_PEOPLE = [
    ("man", "der {}e Mann"),
    ("woman", "die {}e Frau"),
    ("child", "das {}e Kind"),
    ("teacher", "die {}e Lehrerin"),
    ("farmer", "der {}e Bauer"),
]
_ADJECTIVES = [("old", "alt"), ("young", "jung"), ("friendly", "freundlich"), ("tired", "müd")]
_SUBJECTS += [
    (f"the {adjective} {person}", german.format(stem), "er")
    for person, german in _PEOPLE
    for adjective, stem in _ADJECTIVES
]
# English verb, with s; German infinitive, "ich" and "er"; objects.
_BOOKS = [("a book", "ein Buch"), ("a long letter", "einen langen Brief")]
_BOOKS += [("a story", "eine Geschichte"), ("the news", "die Nachrichten")]
_FOOD = [("bread", "Brot"), ("two apples", "zwei Äpfel"), ("a warm soup", "eine warme Suppe")]
_FOOD += [("some cake", "etwas Kuchen")]
_DRINKS = [("milk", "Milch"), ("cold water", "kaltes Wasser"), ("tea", "Tee")]
_THINGS = [("flowers", "Blumen"), ("an old car", "ein altes Auto"), ("a coat", "einen Mantel")]
_ANIMALS = [("a white cat", "eine weiße Katze"), ("the dog", "den Hund"), ("a bird", "einen Vogel")]
_VERBS = [
    ("read", "reads", "lesen", "lese", "liest", _BOOKS),
    ("write", "writes", "schreiben", "schreibe", "schreibt", _BOOKS),
    ("eat", "eats", "essen", "esse", "isst", _FOOD),
    ("buy", "buys", "kaufen", "kaufe", "kauft", _FOOD + _DRINKS + _THINGS),
    ("drink", "drinks", "trinken", "trinke", "trinkt", _DRINKS),
    ("sell", "sells", "verkaufen", "verkaufe", "verkauft", _FOOD + _THINGS),
    ("look for", "looks for", "suchen", "suche", "sucht", _THINGS + _ANIMALS),
    ("see", "sees", "sehen", "sehe", "sieht", _THINGS + _ANIMALS),
]
# English verb of "he" and "I"; German of "ich", "er" and "wir"; "to" is a part of the English one.
_MODALS = [
    ("wants to", "want to", {"ich": "will", "er": "will", "wir": "wollen"}),
    ("has to", "have to", {"ich": "muss", "er": "muss", "wir": "müssen"}),
    ("can", "can", {"ich": "kann", "er": "kann", "wir": "können"}),
]
_PLACES = [("in the garden", "im Garten"), ("in the city", "in der Stadt"), ("at home", "zu Hause")]
_PLACES += [("at the station", "am Bahnhof"), ("at the market", "auf dem Markt"), ("", "")]
_TIMES = [("today", "heute"), ("this morning", "heute Morgen"), ("on Monday", "am Montag")]
_TIMES += [("every day", "jeden Tag"), ("after work", "nach der Arbeit"), ("", "")]


def pairs(seed: int) -> Iterator[tuple[str, str]]:
    """Yields pairs of an English and a German sentence, without an end."""
    choice = random.Random(seed).choice
    while True:
        subject, german_subject, person = choice(_SUBJECTS)
        verb, verb_s, infinitive, verb_ich, verb_er, objects = choice(_VERBS)
        german_verb = {"ich": verb_ich, "er": verb_er, "wir": infinitive}[person]
        is_singular = person == "er"
        thing, german_thing = choice(objects)
        place, german_place = choice(_PLACES)
        time, german_time = choice(_TIMES)
        form, last = choice(("plain", "plain", "question", "modal", "time first")), ""
        english = [subject, verb_s if is_singular else verb, thing, place, time]
        german = [german_subject, german_verb, german_time, german_place, german_thing]
        if form == "question":
            english = ["does" if is_singular else "do", subject, verb, thing, place, time]
            german = [german_verb, german_subject, german_time, german_place, german_thing]
        elif form == "modal":
            he, i, german_modal = choice(_MODALS)
            english = [subject, he if is_singular else i, verb, thing, place, time]
            german[1], last = german_modal[person], infinitive
        elif form == "time first" and time:
            english = [time, *english[:-1]]
            german = [german_time, german_verb, german_subject, german_place, german_thing]
        end = "?" if form == "question" else "."
        yield _sentence(english, end), _sentence([*german, last], end)


def _sentence(parts: list[str], end: str) -> str:
    text = " ".join(filter(None, parts))
    return text[0].upper() + text[1:] + end
