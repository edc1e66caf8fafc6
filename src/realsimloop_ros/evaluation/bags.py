"""Bags without ROS: writing and reading MCAP recordings of our own and of standard messages.

Messages are the dataclasses of the `rosbags` typestore; their fields have the names of the ROS messages, so
code that reads them reads rclpy messages as well. Topic names are given without a leading slash, as our nodes
name them; in the file they are absolute, as ROS records them.
"""

from __future__ import annotations

import struct
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import zstandard
from mcap.exceptions import McapError
from mcap.records import Channel, Message, Schema
from mcap.stream_reader import StreamReader
from rosbags.interfaces import (
    Connection,
    Qos,
    QosDurability,
    QosHistory,
    QosLiveliness,
    QosReliability,
    QosTime,
)
from rosbags.rosbag2 import CompressionFormat, CompressionMode, Reader, ReaderError, StoragePlugin, Writer
from rosbags.rosbag2.storage_mcap import McapWriter
from rosbags.typesys import Stores, get_types_from_msg, get_typestore
from rosbags.typesys.store import Typestore

from realsimloop_ros.evaluation.folders import atomic_folder
from realsimloop_ros.resources import PACKAGE, ResourceError, share_directory

_NEVER = QosTime(9223372036, 854775807)  # what rmw reports for "infinite"
# what reading a cut or damaged MCAP file raises: end of file inside a record, or half a compressed chunk
_DAMAGE = (McapError, zstandard.ZstdError, struct.error, ValueError, EOFError)


class BagError(ValueError):
    """A bag that cannot be used; the message names it, what is wrong and the remedy."""


class TruncatedBagWarning(UserWarning):
    """A bag that was cut off: what came before the cut is used."""


@dataclass(frozen=True)
class BagMessage:
    """One recorded message. topic: without leading slash; stamp_ns: when it was recorded."""

    topic: str
    stamp_ns: int
    message: Any


@dataclass(frozen=True)
class RawBagMessage:
    """One recorded message, as it went over the wire. topic, stamp_ns: as in BagMessage; data: CDR."""

    topic: str
    stamp_ns: int
    message_type: str
    data: bytes


@dataclass(frozen=True)
class BagTopic:
    """A topic of a bag. count: its messages."""

    name: str
    message_type: str
    count: int


def message_folder() -> Path:
    """Where our .msg files are. Raises BagError."""
    try:
        folder = share_directory() / "msg"
    except ResourceError as error:
        raise BagError(f"messages of {PACKAGE}: {error}") from error
    if not any(folder.glob("*.msg")):
        raise BagError(f"messages of {PACKAGE}: no .msg files in {folder}; install the package again")
    return folder


def new_typestore() -> Typestore:
    """A typestore with the standard messages and our own."""
    store = get_typestore(Stores.ROS2_KILTED)
    types: dict[str, Any] = {}
    for path in sorted(message_folder().glob("*.msg")):
        types.update(get_types_from_msg(path.read_text(), f"{PACKAGE}/msg/{path.stem}"))
    store.register(types)
    return store


@lru_cache(maxsize=1)
def message_store() -> Typestore:
    """The shared typestore; do not register further types in it."""
    return new_typestore()


def offered_qos(*, depth: int = 10, reliable: bool = True, latched: bool = False) -> Qos:
    """The QoS that a replayed publisher offers."""
    return Qos(
        QosHistory.KEEP_LAST,
        depth,
        QosReliability.RELIABLE if reliable else QosReliability.BEST_EFFORT,
        QosDurability.TRANSIENT_LOCAL if latched else QosDurability.VOLATILE,
        _NEVER,
        _NEVER,
        QosLiveliness.AUTOMATIC,
        _NEVER,
        False,
    )


class BagWriter:
    """Writes messages into an open bag; made by `bag_writer`."""

    def __init__(self, writer: Writer, store: Typestore) -> None:
        self._writer = writer
        self._store = store
        self._connections: dict[str, Connection] = {}

    def write(self, topic: str, stamp_ns: int, message: Any, qos: Qos | None = None) -> None:
        """Write a message of the typestore. qos counts at the topic's first message only."""
        data = self._store.serialize_cdr(message, message.__msgtype__)
        self.write_raw(topic, stamp_ns, message.__msgtype__, data, qos)

    def write_raw(
        self, topic: str, stamp_ns: int, message_type: str, data: bytes | memoryview, qos: Qos | None = None
    ) -> None:
        """Write a serialized message, such as a raw subscription gives. Raises BagError."""
        name = "/" + topic.strip("/")
        connection = self._connections.get(name)
        if connection is None:
            if message_type not in self._store.types:
                raise BagError(
                    f"topic {name}: unknown message type {message_type!r}; record standard types or ours"
                )
            connection = self._writer.add_connection(
                name, message_type, typestore=self._store, offered_qos_profiles=[qos or offered_qos()]
            )
            self._connections[name] = connection
        elif connection.msgtype != message_type:
            raise BagError(f"topic {name}: {message_type} after {connection.msgtype}; give each type its topic")
        self._writer.write(connection, int(stamp_ns), data)

    def flush(self) -> None:
        """Bring what was written onto the disk, as a chunk that can be read even if no other follows."""
        storage = self._writer.storage
        if isinstance(storage, McapWriter) and storage.chunk.bio.tell():
            storage.close_chunk()
            storage.bio.flush()


@contextmanager
def bag_writer(path: Path, *, atomic: bool = True, compress: bool = False) -> Iterator[BagWriter]:
    """A bag folder with one MCAP file.

    atomic: the folder appears when the block ends well, and replaces a bag of that name; otherwise the file
    grows in place, so that what was written before a kill can be recovered. compress: zstd chunks.
    """
    store = message_store()
    path = Path(path)
    if not atomic:
        if path.exists():
            raise BagError(f"{path}: exists already; remove it or name another bag")
        path.parent.mkdir(parents=True, exist_ok=True)
        with _mcap_writer(path, compress) as writer:
            yield BagWriter(writer, store)
        return
    if path.exists() and not (path / "metadata.yaml").is_file() and (path.is_file() or any(path.iterdir())):
        raise BagError(f"{path}: exists and is no bag; it is not overwritten, name another folder")
    with atomic_folder(path) as temporary:
        temporary.rmdir()  # the writer insists on making it
        # the writer names the file after its folder: write under the final name, then move up
        inner = temporary / path.name
        with _mcap_writer(inner, compress) as writer:
            yield BagWriter(writer, store)
        for part in inner.iterdir():
            part.replace(temporary / part.name)
        inner.rmdir()


def _mcap_writer(path: Path, compress: bool) -> Writer:
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = Writer(path, version=9, storage_plugin=StoragePlugin.MCAP)
    if compress:
        writer.set_compression(CompressionMode.STORAGE, CompressionFormat.ZSTD)
    return writer


def read_bag(
    path: Path,
    topics: Collection[str] | None = None,
    *,
    first_ns: int | None = None,
    last_ns: int | None = None,
) -> Iterator[BagMessage]:
    """Messages of a bag (folder or .mcap file) in the order of their stamps, first_ns <= stamp <= last_ns.

    topics: only these (all where None). A cut-off file is read as far as it goes, in recorded order, and then
    TruncatedBagWarning names the bag and the last stamp. Raises BagError for a missing or unreadable bag, a
    topic that it does not hold (naming those it does), and a message recorded under another definition of its
    type.
    """
    path = Path(path)
    wanted = None if topics is None else {topic.strip("/") for topic in topics}
    present: set[str] = set()
    for source in _sources(path):
        present |= {topic.name for topic in source.topics()} if wanted is not None else set()
    if wanted is not None and (missing := sorted(wanted - present)):
        there = ", ".join(sorted(present)) or "none"
        raise BagError(f"{path}: no topic {missing[0]!r}; its topics are {there}. Remap it or name another")
    for source in _sources(path):
        for topic, stamp, message_type, data, store in source.messages(wanted):
            if (first_ns is not None and stamp < first_ns) or (last_ns is not None and stamp > last_ns):
                continue
            try:
                message = store.deserialize_cdr(data, message_type)
            except Exception as error:  # the decoder raises whatever its generated code meets
                raise BagError(
                    f"{path}: a message on {topic!r} at {stamp} ns is no {message_type} ({error})"
                ) from error
            yield BagMessage(topic, stamp, message)


def read_raw_bag(path: Path, topics: Collection[str] | None = None) -> Iterator[RawBagMessage]:
    """Messages of a bag as `read_bag` gives them, but not decoded; topics that it does not hold are left
    out.
    """
    wanted = None if topics is None else {topic.strip("/") for topic in topics}
    for source in _sources(Path(path)):
        for topic, stamp, message_type, data, _ in source.messages(wanted):
            yield RawBagMessage(topic, stamp, message_type, bytes(data))


def bag_topics(path: Path) -> tuple[BagTopic, ...]:
    """What a bag holds, by name. Reads the whole file where it was cut off, since its index is missing."""
    merged: dict[tuple[str, str], int] = {}
    for source in _sources(Path(path)):
        for topic in source.topics():
            key = (topic.name, topic.message_type)
            merged[key] = merged.get(key, 0) + topic.count
    return tuple(BagTopic(name, message_type, merged[name, message_type]) for name, message_type in sorted(merged))


_Record = tuple[str, int, str, bytes, Typestore]


class _IndexedSource:
    """A complete bag, read through its index."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def topics(self) -> list[BagTopic]:
        with Reader(self._path) as reader:
            return [BagTopic(c.topic.strip("/"), c.msgtype, c.msgcount) for c in reader.connections]

    def messages(self, wanted: set[str] | None) -> Iterator[_Record]:
        with Reader(self._path) as reader:
            chosen = [c for c in reader.connections if wanted is None or c.topic.strip("/") in wanted]
            if not chosen:
                return
            store = _store_for(self._path, [(c.msgtype, c.msgdef.data, c.digest) for c in chosen])
            try:
                for connection, stamp, data in reader.messages(chosen):
                    yield connection.topic.strip("/"), stamp, connection.msgtype, data, store
            except ReaderError as error:
                raise BagError(f"{self._path}: damaged ({error}); copy or record it again") from error


class _CutSource:
    """An MCAP file without its end: read record by record up to the cut."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def topics(self) -> list[BagTopic]:
        counts: dict[tuple[str, str], int] = {}
        for topic, _, message_type, _, _ in self._records(None, warn=False):
            counts[topic, message_type] = counts.get((topic, message_type), 0) + 1
        return [BagTopic(topic, message_type, count) for (topic, message_type), count in counts.items()]

    def messages(self, wanted: set[str] | None) -> Iterator[_Record]:
        return self._records(wanted, warn=True)

    def _records(self, wanted: set[str] | None, *, warn: bool) -> Iterator[_Record]:
        schemas: dict[int, Schema] = {}
        channels: dict[int, Channel] = {}
        stores: dict[str, Typestore] = {}
        last: int | None = None
        with self._path.open("rb") as stream:
            records = StreamReader(stream).records
            while True:
                try:
                    record = next(records)
                except (StopIteration, *_DAMAGE):
                    break
                if isinstance(record, Schema):
                    schemas[record.id] = record
                elif isinstance(record, Channel):
                    channels[record.id] = record
                elif isinstance(record, Message) and record.channel_id in channels:
                    last = record.log_time
                    channel = channels[record.channel_id]
                    topic, schema = channel.topic.strip("/"), schemas[channel.schema_id]
                    if wanted is not None and topic not in wanted:
                        continue
                    if schema.name not in stores:
                        definition = schema.data.decode(errors="replace")
                        stores[schema.name] = _store_for(self._path, [(schema.name, definition, "")])
                    yield topic, record.log_time, schema.name, record.data, stores[schema.name]
        if last is None:
            raise BagError(f"{self._path}: cut off before its first whole chunk, nothing is left; record it again")
        if warn:
            warnings.warn(
                TruncatedBagWarning(
                    f"{self._path}: cut off (no end mark); read up to its last whole message, stamp {last} ns"
                ),
                stacklevel=3,
            )


def _sources(path: Path) -> list[_IndexedSource | _CutSource]:
    if not path.exists():
        beside = sorted(
            p.name for p in path.parent.glob("*") if p.suffix == ".mcap" or (p / "metadata.yaml").is_file()
        )
        there = f"{path.parent} holds the bags {', '.join(beside)}" if beside else f"{path.parent} holds no bag"
        raise BagError(f"{path}: no such bag; {there}")
    if _opens(path):
        return [_IndexedSource(path)]
    files = sorted(path.glob("*.mcap")) if path.is_dir() else [path]
    if not files or (path.is_file() and path.suffix != ".mcap"):
        raise BagError(f"{path}: is no bag; name a bag folder (with metadata.yaml) or an .mcap file")
    return [_IndexedSource(file) if _opens(file) else _CutSource(file) for file in files]


def _opens(path: Path) -> bool:
    if path.is_dir() and not (path / "metadata.yaml").is_file():
        return False
    try:
        with Reader(path):
            return True
    except (ReaderError, OSError, struct.error, TypeError, AssertionError):
        return False


def _store_for(path: Path, used: Sequence[tuple[str, str, str]]) -> Typestore:
    """The shared typestore, or a wider one for a bag with own types. used: (type, definition, hash)."""
    store = message_store()
    unknown = [(name, definition) for name, definition, _ in used if name not in store.types]
    if unknown:
        store = new_typestore()
        for name, definition in unknown:
            types = {k: v for k, v in get_types_from_msg(definition, name).items() if k not in store.types}
            store.register(types)
    for name, _, digest in used:
        if digest and digest != store.hash_rihs01(name):
            raise BagError(
                f"{path}: {name} was recorded with another definition (hash {digest}); read it with the "
                f"version of {PACKAGE} that wrote it, or record it again"
            )
    return store
