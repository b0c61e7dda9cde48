"""Decides. Pure: no IO, no clock, no randomness, standard library only."""
