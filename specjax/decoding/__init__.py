"""Decoding: requests, state, and the one loop."""
