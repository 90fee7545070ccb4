"""The messages between an HTTP process and its parent.

StartHttp -->              the first message
           <-- NotLoaded    the HTTP process cannot start
ConnectEngine -->           when the engine has loaded the model
           <-- HttpReady   requests are answered

Then, at any time:

PublishState <--            the work of this HTTP process
PeerState, PeerGone -->     the work of another one
TakePlace <--               a request of a key with a limit begins
PlaceTaken -->              the answer
GiveBackPlace <--           such a request has ended
Ask <--                     a question to all others
Question -->                that question, on its way
Answer <--                  the answer of an HTTP process
NumAsked, Answered -->      how many were asked, and each answer on its way
Order -->                   drain and so on
Alive <--                   a sign of life, each second
Drained <--                 no request is left
EngineLost <--              the HTTP process ends because the engine has ended
"""

from __future__ import annotations

from typing import Literal

import msgspec

from .. import Descriptor
from ...config import ServeConfig
from ...types.model_info import ModelInfo
from ...types.not_loaded import NotLoaded
from ...types.pooling import PoolingInfo

# The requests of the parent to an HTTP process:
#   drain       take no further requests, and say Drained when none is left
#   close       end; all HTTP processes are drained
#   cancel      end now
#   reload      read keys and certificates again, and open the request log again
#   log_stalls  log the stalls of the event loop
OrderKind = Literal["drain", "close", "cancel", "reload", "log_stalls"]


class StartHttp(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Serve.

    Args:
      number: no other HTTP process of the server has it, or had it.
      slot: the place among running ones, from 0; a successor takes its predecessor's place.
      is_successor: the others serve until it is ready.
      log_level: as in logging.
      sock: bound; a Unix socket may listen already.
    """

    config: ServeConfig
    number: int
    slot: int
    is_successor: bool
    log_level: int
    sock: Descriptor


class ConnectEngine(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The engine serves this connection; see engine/process/messages.py."""

    info: ModelInfo
    pooling: PoolingInfo | None
    connection: Descriptor


class HttpReady(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The HTTP process answers requests.

    Args:
      address: as the log shows it.
    """

    address: str


class PublishState(msgspec.Struct, frozen=True, tag=True):
    """The present state of an HTTP process, for all others."""

    state: bytes


class PeerState(msgspec.Struct, frozen=True, tag=True):
    """The state of another HTTP process."""

    member: int
    state: bytes


class PeerGone(msgspec.Struct, frozen=True, tag=True):
    """Another HTTP process has ended."""

    member: int


class TakePlace(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Count a request of a key, unless `limit` of them are counted."""

    number: int
    key: str
    limit: int


class PlaceTaken(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The answer to TakePlace with the same number."""

    number: int
    is_taken: bool


class GiveBackPlace(msgspec.Struct, frozen=True, tag=True):
    """Count a request of a key less."""

    key: str


class Ask(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A question to all other HTTP processes."""

    number: int
    question: bytes


class Question(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A question of another HTTP process; Answer with the same number is the answer."""

    number: int
    question: bytes


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The answer to Question."""

    number: int
    answer: bytes


class NumAsked(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """So many HTTP processes have got the question of Ask with the same number."""

    number: int
    num_asked: int


class Answered(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """An answer to Ask with the same number; None if an HTTP process has ended instead."""

    number: int
    answer: bytes | None


class Order(msgspec.Struct, frozen=True, tag=True):
    """See OrderKind."""

    kind: OrderKind


class Alive(msgspec.Struct, frozen=True, tag=True):
    """The event loop of the HTTP process runs."""


class Drained(msgspec.Struct, frozen=True, tag=True):
    """No request is left, after Order("drain")."""


class EngineLost(msgspec.Struct, frozen=True, tag=True):
    """The connection to the engine has ended, so this HTTP process ends, too."""


FromHttp = (
    NotLoaded
    | HttpReady
    | PublishState
    | TakePlace
    | GiveBackPlace
    | Ask
    | Answer
    | Alive
    | Drained
    | EngineLost
)
ToHttp = (
    StartHttp
    | ConnectEngine
    | PeerState
    | PeerGone
    | PlaceTaken
    | Question
    | NumAsked
    | Answered
    | Order
)
