"""How payload becomes bytes on a link: frames, their headers, and acknowledgements. Pure."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple


class InterfaceBytes(NamedTuple):
    """Bytes on one interface.

    Attributes:
        sent: bytes that leave.
        received: bytes that arrive.
    """

    sent: float = 0.0
    received: float = 0.0


@dataclasses.dataclass(frozen=True)
class Frames:
    """How payload becomes bytes on a link: full frames, and an acknowledgement for every second segment.

    Each frame has an Ethernet header (14 bytes; an interface counts neither preamble nor checksum), an IPv4
    header (20) and a TCP header with time stamps (32), within an MTU that counts the latter two. RFC 5681
    wants an acknowledgement at least every second full segment, which is what Linux sends. Data that goes
    back over the same connection at that time carries it. Where a link has several connections, each carries
    data for its share of the time only, and only that share of the acknowledgements travels with data.

    Attributes:
        mtu: largest IP packet, in bytes.
        ethernet: bytes of the Ethernet header.
        headers: bytes of IP and TCP headers.
        segments_per_ack: segments that one acknowledgement answers.
    """

    mtu: int = 1500
    ethernet: int = 14
    headers: int = 52
    segments_per_ack: float = 2.0

    @property
    def payload(self) -> int:
        """Bytes of payload in a full frame."""
        return self.mtu - self.headers

    def on_wire(self, traffic: InterfaceBytes, busiest: float | None = None) -> InterfaceBytes:
        """Return the bytes that a host's interface counts for so much payload to and from one other host.

        Args:
            traffic: payload.
            busiest: payload that the busiest direction of any link carries meanwhile, with this and all
                other connections; default: this one is alone.
        """
        most = max(*traffic, busiest or 0.0)
        return InterfaceBytes(
            self._one_way(traffic.sent, traffic.received, most),
            self._one_way(traffic.received, traffic.sent, most),
        )

    def _one_way(self, data: float, answered: float, busiest: float) -> float:
        """Bytes of frames with `data`, and of the answers to `answered` that do not travel with it."""
        segments = data / self.payload
        wanted = answered / self.payload / self.segments_per_ack
        carried = min(segments, wanted * data / busiest) if busiest else 0.0
        return data + (segments + wanted - carried) * (self.headers + self.ethernet)


# Payload as it is: the formulas of the papers.
BARE = Frames(mtu=1, ethernet=0, headers=0)
ETHERNET = Frames()
