"""Random texts, the same in every run."""

from __future__ import annotations

from collections.abc import Sequence
import random

# Common words: a tokenizer makes about one token of each, as it does with prose.
WORDS = (
    "time year people way day man thing woman life child world school state family "
    "student group country problem hand part place case week company system program "
    "question work night point home water room mother area money story fact month lot "
    "right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city name team minute idea body "
    "back parent face level office door health person art war history party result "
    "change morning reason research girl guy moment air teacher force order plan river "
    "light green small large early young important public bad same able good new first "
    "last long great little own other old high different big next run move live believe "
    "hold bring happen write provide sit stand lose pay meet include continue set learn "
    "lead understand watch follow stop create speak read allow add spend grow open walk "
    "win offer remember love consider appear buy wait serve die send expect build stay"
).split()

# Words in the vocabulary of the test kit's tiny tokenizer. It cuts other words into many
# more tokens than a real tokenizer would.
TINY_WORDS = (
    "The quick brown fox jumps over the lazy dog sleeps on and Paris is the capital of "
    "France Rome Italy Once upon a time there was a little server that never waited for "
    "anyone Answer the following questions who wrote it when where why Weather reports "
    "expected heavy rain nobody brought umbrellas to town Structured concurrency means "
    "that every task belongs to some nursery"
).split()


def open_chance(*seeds: object) -> random.Random:
    """Make a random generator; equal seeds give equal generators."""
    return random.Random("/".join(map(str, seeds)))


def write_words(count: int, *seeds: object, words: Sequence[str] = WORDS) -> str:
    """Draw `count` words; equal seeds give equal words."""
    return " ".join(open_chance(*seeds).choices(words, k=count))


def write_text(num_characters: int, *seeds: object) -> str:
    """Draw a text of exactly so many characters; equal seeds give equal texts."""
    text = write_words(num_characters // 4, *seeds, words=TINY_WORDS)
    return text[:num_characters].ljust(num_characters, ".")
