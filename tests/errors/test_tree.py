"""The tree that the docstring draws is the tree of the classes."""

from __future__ import annotations

import re

from trioserve import errors
from trioserve.errors import TrioserveError

BRANCH = re.compile(r" {4}(\*|  -) (\w+) *(.*)")


def test_the_docstring_draws_the_tree() -> None:
    base: type = TrioserveError
    drawn = {"TrioserveError"}
    for line in (errors.__doc__ or "").splitlines():
        if match := BRANCH.fullmatch(line):
            found = getattr(errors, match[2])
            is_branch = match[1] == "*"
            assert found.__base__ is (TrioserveError if is_branch else base)
            base = found if is_branch else base
            # The status of a MalformedRequest is chosen for each one.
            if statuses := re.findall(r"\b\d{3}\b", match[3]):
                assert str(found.status) in statuses, line
            drawn.add(match[2])
    public = [getattr(errors, name) for name in errors.__all__]
    classes = [each for each in public if isinstance(each, type)]
    assert drawn == {c.__name__ for c in classes if issubclass(c, TrioserveError)}
