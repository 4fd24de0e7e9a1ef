"""In which order a worker's bundles leave for one server, and how far ahead of its answers. Pure."""

from __future__ import annotations

from collections.abc import Mapping


class Turns:
    """Bundles leave in the order of their numbers, whatever the order in which their gradients are computed.

    A server answers a bundle when it has it of all workers. If each sent in an order of its own, or one far
    ahead of another on a link that they share, the answers would come late, and would no longer cross the
    link while gradients do. So all take the same order, and none has more bytes under way than `ahead`. With
    one order for all, the first bundle that is not answered may always leave: none waits for ever.

    Args:
        sizes: bytes of each bundle of the server, by number.
        ahead: bytes that may be unanswered, though always one bundle; None: any number, for a server that
            answers none before it has all.
    """

    def __init__(self, sizes: Mapping[int, int], ahead: int | None) -> None:
        self._sizes = dict(sorted(sizes.items()))
        self._order = list(self._sizes)
        self._ahead = ahead
        self._ready: set[int] = set()
        self._next = 0
        self._under_way = 0

    def computed(self, number: int) -> list[int]:
        """Note that a bundle's gradient is computed; returns the bundles that leave now."""
        self._ready.add(number)
        return self._leaving()

    def answered(self, number: int) -> list[int]:
        """Note that a bundle's weights are here; returns the bundles that leave now."""
        self._under_way -= self._sizes[number]
        return self._leaving()

    def _leaving(self) -> list[int]:
        found = []
        while (number := self._order[self._next]) in self._ready and self._fits(number):
            self._ready.remove(number)
            self._under_way += self._sizes[number]
            self._next = (self._next + 1) % len(self._order)
            found.append(number)
        return found

    def _fits(self, number: int) -> bool:
        return (
            self._ahead is None or not self._under_way or self._under_way + self._sizes[number] <= self._ahead
        )
