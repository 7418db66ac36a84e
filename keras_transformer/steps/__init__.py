"""Steps of a text before and after its translation: tags, terms; `markup` is a door."""
