"""How fast does a server stream to many clients at once?

This is `trioserve bench serve`, for those who know it by its former name. docs/measure.rst tells
how to read the answer, and ``--help`` lists the options.

    python bench/serving.py --url http://127.0.0.1:8000 --concurrency 1 16 64
"""

from __future__ import annotations

import sys

from trioserve.__main__ import main

if __name__ == "__main__":
    raise SystemExit(main(["bench", "serve", *sys.argv[1:]]))
