"""Leaky tests: the pytest plugin, and assertions that work without pytest."""
