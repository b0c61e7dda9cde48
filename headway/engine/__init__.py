"""Runs the loop between scheduler and executor, and turns tokens into text."""
