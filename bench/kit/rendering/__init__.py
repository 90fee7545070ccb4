"""Requests that are expensive to read, and a server whose model computes little."""
