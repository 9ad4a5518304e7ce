"""Fuzzing: a seeded mutator over valid requests, sent to a real server on a tiny model."""
