"""Telling: a report as text, as JSON and as a page, without torch."""
