"""Corpora before training: cleaning, rules, translation memories, terms."""
