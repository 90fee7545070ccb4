"""The messages between an HTTP process and its parent.

StartHttp -->              the first message
           <-- NotLoaded    the HTTP process cannot start
ConnectEngine -->           when the engine has loaded the model
           <-- HttpReady   requests are answered

Then, at any time:

PublishState <--            the work of this HTTP process
PeerState, PeerLeft -->     the work of another one
TakePlace <--               a request of a key with a limit begins
PlaceTaken -->              the answer
GiveBackPlace <--           such a request has ended
Question <--, -->           a question to all others, and on its way to each
NumAsked -->                how many were asked
Answer <--, -->             the answer of each, and on its way to the asker
Order -->                   drain and so on
Alive <--                   a sign of life, each second
Drained <--                 no request is left
EngineLost <--              the HTTP process ends because the engine has ended
"""

from __future__ import annotations

from typing import Literal

from .. import Alive, Descriptor, Message
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


class StartHttp(Message, frozen=True, kw_only=True):
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


class ConnectEngine(Message, frozen=True, kw_only=True):
    """The engine serves this connection; see engine/process/messages.py."""

    info: ModelInfo
    pooling: PoolingInfo | None
    connection: Descriptor


class HttpReady(Message, frozen=True, kw_only=True):
    """The HTTP process answers requests.

    Args:
      address: as the log shows it.
    """

    address: str


class PublishState(Message, frozen=True):
    """The present state of an HTTP process, for all others."""

    state: bytes


class PeerState(Message, frozen=True):
    """The state of another HTTP process."""

    member: int
    state: bytes


class PeerLeft(Message, frozen=True):
    """Another HTTP process has ended."""

    member: int


class TakePlace(Message, frozen=True, kw_only=True):
    """Count a request of a key, unless `limit` of them are counted."""

    number: int
    key: str
    limit: int


class PlaceTaken(Message, frozen=True, kw_only=True):
    """The answer to TakePlace with the same number."""

    number: int
    key: str
    is_taken: bool


class GiveBackPlace(Message, frozen=True):
    """Count a request of a key less."""

    key: str


class Question(Message, frozen=True, kw_only=True):
    """A question to all other HTTP processes; the hub gives it another number on its way."""

    number: int
    question: bytes


class NumAsked(Message, frozen=True, kw_only=True):
    """So many HTTP processes have got the question with the same number."""

    number: int
    num_asked: int


class Answer(Message, frozen=True, kw_only=True):
    """An answer of one HTTP process; None if it has ended instead."""

    number: int
    answer: bytes | None


class Order(Message, frozen=True):
    """See OrderKind."""

    kind: OrderKind


class Drained(Message, frozen=True):
    """No request is left, after Order("drain")."""


class EngineLost(Message, frozen=True):
    """The connection to the engine has ended, so this HTTP process ends, too."""


FromHttp = (
    NotLoaded
    | HttpReady
    | PublishState
    | TakePlace
    | GiveBackPlace
    | Question
    | Answer
    | Alive
    | Drained
    | EngineLost
)
ToHttp = (
    StartHttp
    | ConnectEngine
    | PeerState
    | PeerLeft
    | PlaceTaken
    | Question
    | NumAsked
    | Answer
    | Order
)
