"""The keys of a history, and the controls that they are used for."""

from __future__ import annotations

from trioserve.http.keys.keys import Key

from .dice import Dice
from .plans import ControlPlan, KeyPlan

_STRANGER = KeyPlan(secret="sk-stranger", key=None)


def draw_keys(dice: Dice) -> tuple[KeyPlan, ...]:
    """Draw the keys of a server; none for a server without keys."""
    if not dice.chance(0.35):
        return ()
    keys = [_draw_key(dice, name) for name in ("ann", "bob")]
    root = Key(name="root", is_admin=True)
    return (*keys, KeyPlan(secret="sk-root", key=root))


def _draw_key(dice: Dice, name: str) -> KeyPlan:
    draw = dice.random
    key = Key(
        name=name,
        weight=draw.choice([0.1, 1.0, 5.0]),
        max_requests=draw.choice([1, 2]) if dice.mishap(0.4) else None,
        # About as many as one or two requests need.
        tokens_per_minute=draw.choice([20, 100, 1000]) if dice.mishap(0.4) else None,
    )
    return KeyPlan(secret=f"sk-{name}", key=key)


def draw_key(dice: Dice, keys: tuple[KeyPlan, ...]) -> KeyPlan | None:
    """Draw the key of a client; None on a server without keys."""
    if not keys:
        return None
    return _STRANGER if dice.mishap(0.1) else dice.random.choice(keys)


def draw_controls(
    dice: Dice, keys: tuple[KeyPlan, ...], num_requests: int
) -> tuple[ControlPlan, ...]:
    """Draw who looks at requests, and who cancels them."""
    draw = dice.random
    names = [f"request-{number + 1}" for number in range(num_requests)]
    controls = []
    if dice.chance(0.25):
        # To look is not a mishap.
        cancels = not dice.is_calm
        for _ in range(draw.randint(1, 4)):
            controls.append(
                ControlPlan(
                    at=draw.uniform(0.0, 1.5),
                    method="DELETE" if cancels and dice.chance(0.6) else "GET",
                    request_id=draw.choice([None, *names]),
                    key=draw_key(dice, keys),
                )
            )
    return tuple(controls)
