"""Measurements: time, acceptance, losslessness, the gap, and the report."""
