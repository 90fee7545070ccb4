"""Sphinx's configuration for these pages.

    pip install -e '.[docs]' && sphinx-build -W --keep-going -b html docs docs/_build

The build reads files of this repository alone: no intersphinx, nothing from the network.
"""

project = "trioserve"
author = "the authors of trioserve"
project_copyright = author
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = "trioserve"
html_static_path = ["_static"]
html_css_files = ["tables.css"]
# Readers find the text itself in the repository.
html_copy_source = False

# Shell commands and JSON stand beside programs, so no block is Python unless it says so.
highlight_language = "none"
