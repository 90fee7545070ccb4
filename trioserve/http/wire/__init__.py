"""Answers and header fields that no dialect of the API shapes."""
