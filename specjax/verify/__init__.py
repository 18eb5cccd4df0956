"""Verification: laws and drafted tokens in, a Verdict out; pure arrays."""
