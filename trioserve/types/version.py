"""The version of the package, apart from everything that needs time to import."""

__version__ = "0.1.0"
