"""What a search over degrees is on: the cards, the samples of a step, the rates."""

from __future__ import annotations

from dataclasses import dataclass

from symacct.devices import Device


@dataclass(frozen=True, slots=True)
class Setting:
    """What is searched over and on what: cards in all and in a node, samples in a step, rates in B/s and FLOP/s."""

    cards: int
    batch: int
    card: Device
    precision: str
    efficiency: float = 0.5
    node: int = 8
    network: int | None = None
