"""Headway: an LLM inference server for mixed traffic."""
