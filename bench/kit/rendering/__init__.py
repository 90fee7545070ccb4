"""Requests that are expensive to read, and a server with a model that computes little."""
