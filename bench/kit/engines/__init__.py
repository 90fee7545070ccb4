"""Servers with their engine inside their process or outside, and devices that sleep."""
