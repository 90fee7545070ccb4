"""The client of HTTP that all programs share."""
