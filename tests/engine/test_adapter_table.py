"""The decisions about adapters: whatever happens, nothing that is used leaves the device."""

from __future__ import annotations

from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    rule,
)
import pytest

from trioserve.engine.generation.adapter_table import AdapterTable
from trioserve.errors import AdapterNotFound, AdapterRefused
from trioserve.types.adapter import AdapterFacts, AdapterSource, explain_name

LIMIT = 4
NAMES = st.sampled_from(["french", "german", "owner/italian", "greek"])


def make_facts(source: AdapterSource) -> AdapterFacts:
    return AdapterFacts(
        number=source.number, name=source.name, digest=b"", rank=1, num_bytes=1
    )


class Adapters(RuleBasedStateMachine):
    """A device with its own books, which are compared with the table's."""

    loads = Bundle("loads")
    sequences = Bundle("sequences")

    def __init__(self) -> None:
        super().__init__()
        self.table = AdapterTable(lambda name: name == "base", LIMIT)
        self.seen: set[int] = set()
        self.on_device: set[int] = set()
        self.loading: dict[str, int] = {}
        self.used: dict[int, int] = {}
        self.num_sequences = 0

    def drop(self, numbers: list[int]) -> None:
        for number in numbers:
            assert number not in self.used.values(), "a sequence still uses it"
            served = {each.facts.number for each in self.table.served}
            assert number not in served, "a request may still name it"
            self.on_device.remove(number)

    @rule(target=loads, name=NAMES, replaces=st.booleans())
    def begin(self, name: str, replaces: bool) -> AdapterSource | None:
        if name in self.loading:
            return None
        is_served = name in [each.name for each in self.table.served]
        num_held = len(self.on_device) + len(self.loading)
        try:
            source = self.table.begin(name, "folder", replaces=replaces)
        except AdapterRefused:
            assert (is_served and not replaces) or num_held >= LIMIT
            return None
        assert source.number not in self.seen, "a number is never used again"
        self.seen.add(source.number)
        self.loading[name] = source.number
        return source

    @rule(source=consumes(loads), succeeds=st.booleans())
    def end_load(self, source: AdapterSource | None, succeeds: bool) -> None:
        if source is None:
            return
        del self.loading[source.name]
        if not succeeds:
            self.table.give_up(source)
            return
        self.on_device.add(source.number)
        self.drop(self.table.finish(source, make_facts(source)))
        served = {each.name: each.facts.number for each in self.table.served}
        assert served[source.name] == source.number

    @rule(name=NAMES)
    def unload(self, name: str) -> None:
        is_served = name in [each.name for each in self.table.served]
        try:
            self.drop(self.table.unload(name))
        except AdapterNotFound:
            assert not is_served
        assert name not in [each.name for each in self.table.served]

    @rule(target=sequences, name=NAMES)
    def use(self, name: str) -> int:
        self.num_sequences += 1
        served = {each.name: each.facts.number for each in self.table.served}
        try:
            facts = self.table.use(name, [self.num_sequences])
        except AdapterNotFound:
            assert name not in served
        else:
            assert facts.number == served[name], "a new request has the newest one"
            self.used[self.num_sequences] = facts.number
        return self.num_sequences

    # Not consumed: the end of a sequence may be told twice.
    @rule(sequence=sequences)
    def leave(self, sequence: int) -> None:
        self.used.pop(sequence, None)
        self.drop(self.table.leave([sequence]))

    @rule(name=NAMES)
    def lose(self, name: str) -> None:
        served = {each.name: each.facts.number for each in self.table.served}
        if name not in served:
            return
        number = served[name]
        users = {k for k, used in self.used.items() if used == number}
        lost, sequences = self.table.lose(number)
        assert (lost, {*sequences}) == (name, users)
        for sequence in users:
            del self.used[sequence]
        self.on_device.remove(number)

    @invariant()
    def nothing_is_kept_in_vain(self) -> None:
        served = {each.facts.number for each in self.table.served}
        assert self.on_device == served | {*self.used.values()}
        assert self.table.num_held == len(self.on_device) + len(self.loading)
        # A replaced adapter that is in use may be one too many.
        assert self.table.num_held <= LIMIT + 1
        assert self.table.number_of == self.used


TestAdapters = Adapters.TestCase
TestAdapters.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, database=None
)


def test_names_and_numbers_that_are_refused() -> None:
    table = AdapterTable(lambda name: name == "base", 1)
    with pytest.raises(AdapterRefused, match="'base' is a name of the model"):
        table.begin("base", "folder", replaces=True)
    source = table.begin("french", "folder", replaces=False)
    with pytest.raises(AdapterRefused, match="1 adapters are loaded or in use"):
        table.begin("german", "folder", replaces=False)
    table.finish(source, make_facts(source))
    with pytest.raises(AdapterRefused, match="is loaded already; set load_inplace"):
        table.begin("french", "folder", replaces=False)
    for name in ("a", "ab c", "owner/name", "näme", "x" * 128, "a:latest"):
        assert not explain_name(name), name
    wrong = (
        "",
        "x" * 129,
        "a\n",
        "a\x1b[2J",
        " a",
        "a ",
        "/a",
        "a/",
        "a//b",
        "..",
        "a/../b",
    )
    for name in wrong:
        assert explain_name(name), name
        with pytest.raises(AdapterRefused, match="lora_name: "):
            table.begin(name, "folder", replaces=False)
