"""Corpora before training: cleaning, rules, translation memories, terms, the demo's dates."""
