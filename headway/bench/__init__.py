"""Measures what Headway promises, on the machine at hand."""
