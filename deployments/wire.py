"""The wire: how frozen dataclasses travel between the processes of a cell and rest in its store. A fact is declared
once, where it belongs; msgspec writes it as MessagePack, and checks every field when it is read.

A message is a pair: the name of its class, and its fields by name. A field that the reader does not know is left out,
one that is missing gets its default, so that processes of neighbouring versions understand each other.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import Annotated, Any, Generic, TypeVar

import msgspec

Natural = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
"""A whole number of at least 0, which SQLite takes, too."""
KindT = TypeVar("KindT")


class WireError(ValueError):
    """What is read is no such message; the text names the field."""


def _read(kind: type[Any], value: Any) -> Any:
    if kind is not Fraction:
        raise NotImplementedError(kind)
    try:
        return Fraction(value)
    except (TypeError, ZeroDivisionError) as error:
        raise ValueError(str(error)) from error


encode: Callable[[Any], bytes] = msgspec.msgpack.Encoder(enc_hook=str).encode
"""A value of a known type, which the reader names, too (`decoder`)."""


def decoder(kind: type[KindT]) -> Callable[[bytes], KindT]:
    """Reads what `encode` wrote of such a value. Raises WireError."""
    plain = msgspec.msgpack.Decoder(kind, dec_hook=_read).decode

    def decode(data: bytes) -> KindT:
        try:
            return plain(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise WireError(f"{getattr(kind, '__name__', kind)}: {error}") from error

    return decode


class Wire(Generic[KindT]):
    """Messages of several classes."""

    def __init__(self, *kinds: type[KindT]) -> None:
        self._decoders = {kind.__name__: decoder(kind) for kind in kinds}
        self._pair = decoder(tuple[str, msgspec.Raw])

    def encode(self, message: KindT) -> bytes:
        return encode((type(message).__name__, message))

    def decode(self, data: bytes) -> KindT:
        """Raises WireError."""
        name, fields = self._pair(data)
        return self.read(name, bytes(fields))

    def parts(self, message: KindT) -> tuple[str, bytes]:
        """The name of its class, and its fields: what `read` takes."""
        return type(message).__name__, encode(message)

    def read(self, name: str, fields: bytes) -> KindT:
        """Raises WireError."""
        if name not in self._decoders:
            raise WireError(f"a message of kind {name[:80]!r}; allowed: {', '.join(self._decoders)}")
        return self._decoders[name](fields)


_LENGTH_BYTES = 4
MAX_FRAME_BYTES = 1 << 20


def framed(data: bytes) -> bytes:
    """A message of a connection: after its length in bytes (four, big-endian)."""
    return len(data).to_bytes(_LENGTH_BYTES) + data


class FramedMessages(Generic[KindT]):
    """Reads the framed messages of one direction of a connection, in whatever pieces they come."""

    def __init__(self, wire: Wire[KindT]) -> None:
        self._wire = wire
        self._rest = b""

    def feed(self, piece: bytes) -> list[KindT]:
        """The messages that are whole now. Raises WireError."""
        data, start, found = self._rest + piece, 0, []
        while len(data) >= (begin := start + _LENGTH_BYTES):
            length = int.from_bytes(data[start:begin])
            if length > MAX_FRAME_BYTES:
                raise WireError(f"a message of {length} bytes; allowed: {MAX_FRAME_BYTES}")
            if len(data) < begin + length:
                break
            found.append(self._wire.decode(data[begin : begin + length]))
            start = begin + length
        self._rest = data[start:]
        return found


def to_plain(value: object) -> Any:
    """A frozen dataclass as plain values, for JSON."""
    return msgspec.to_builtins(value, enc_hook=str)


def to_json(value: object) -> Any:
    """Frozen dataclasses, and lists and mappings of them, as what JSON can say: infinity and NaN are None."""
    return msgspec.json.decode(msgspec.json.encode(value, enc_hook=str))


def from_plain(given: Any, kind: type[KindT]) -> KindT:
    """What `to_plain` made. Raises WireError."""
    try:
        return msgspec.convert(given, kind, dec_hook=_read, str_keys=True)
    except msgspec.MsgspecError as error:
        raise WireError(f"{getattr(kind, '__name__', kind)}: {error}") from error
