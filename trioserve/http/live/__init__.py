"""The requests that a server is answering, and its state: serving, draining."""
