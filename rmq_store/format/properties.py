"""Stored text decoded as the broker's Java does: UTF-8 with replacement, properties, host addresses."""

from __future__ import annotations

import codecs
import ipaddress
from functools import lru_cache

from rmq_store.format.byte_layout import HOST_V4_SIZE, NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR

_SURROGATE_LEAD = 0xED
_NAME_VALUE = chr(NAME_VALUE_SEPARATOR)
_ITEM_END = chr(PROPERTY_SEPARATOR)
_V4_MAPPED = bytes(10) + b"\xff\xff"


def _replace_like_java(error: UnicodeError) -> tuple[str, int]:
    """One U+FFFD for each malformed sequence, as `java.lang.String` decodes it.

    Python and Java both replace a maximal invalid prefix once. They differ only for encoded
    surrogates: Java replaces the three bytes ED A0..BF xx once, Python three times.
    """
    assert isinstance(error, UnicodeDecodeError)
    raw, start = error.object, error.start
    if (
        raw[start] != _SURROGATE_LEAD
        or not 0xA0 <= int.from_bytes(raw[start + 1 : start + 2], "big") < 0xC0
    ):
        return "\ufffd", error.end
    third_follows = start + 2 < len(raw) and raw[start + 2] & 0xC0 == 0x80
    return "\ufffd", start + (3 if third_follows else 2)


codecs.register_error("rmq_store.java", _replace_like_java)


def decode_utf8(raw: bytes) -> str:
    """`new String(raw, UTF_8)`: never fails; malformed sequences become U+FFFD."""
    return raw.decode("utf-8", "rmq_store.java")


def encode_utf8(text: str) -> bytes:
    """`text.getBytes(UTF_8)`: a lone surrogate becomes a question mark."""
    return text.encode("utf-8", "replace")


def decode_properties(raw: bytes) -> dict[str, str]:
    """Properties by the broker's rule (MessageDecoder#string2messageProperties).

    An item ends at 0x02 or at the end of the string. The first 0x01 of an item separates name and
    value. Items with an empty name or an empty value are skipped. If a name is repeated, its last
    value is used.
    """
    properties: dict[str, str] = {}
    for item in decode_utf8(raw).split(_ITEM_END):
        at = item.find(_NAME_VALUE)
        if 0 < at < len(item) - 1:
            properties[item[:at]] = item[at + 1 :]
    return properties


def format_host(raw: bytes) -> str:
    """`ip:port` or `[ip]:port` of a stored host, with the address as Java prints it."""
    ip, port = raw[:-4], int.from_bytes(raw[-4:], "big", signed=True)
    if len(raw) == HOST_V4_SIZE:
        return f"{ip[0]}.{ip[1]}.{ip[2]}.{ip[3]}:{port}"
    if ip.startswith(_V4_MAPPED):  # java.net reads it as the IPv4 address inside
        return f"{ip[12]}.{ip[13]}.{ip[14]}.{ip[15]}:{port}"
    groups = (format(int.from_bytes(ip[at : at + 2], "big"), "x") for at in range(0, 16, 2))
    return f"[{':'.join(groups)}]:{port}"


@lru_cache(maxsize=1024)
def parse_host(text: str) -> bytes:
    """The stored bytes of `ip:port` or `[ip]:port`: 8 bytes with IPv4, 20 with IPv6.

    Raises ValueError if the text has neither form.
    """
    address, colon, port = text.rpartition(":")
    if not colon:
        raise ValueError(f"{text!r} is not ip:port")
    ip = ipaddress.ip_address(address.removeprefix("[").removesuffix("]"))
    return ip.packed + int(port).to_bytes(4, "big", signed=True)
