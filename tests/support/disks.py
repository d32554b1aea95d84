"""Disks that fail on purpose, and a model of what a power cut may leave of what they did.

The model knows three things about durability and nothing else. A file's bytes are certain after its fsync; before,
the file may hold any content it had since the last one, or a part of it. A name is certain after the fsync of its
directory; before, each change of a name may be kept or lost. An fsync that failed makes nothing certain, ever.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sndr.durable import PosixDisk

READ_ONLY_CALLS = frozenset({"lstat", "fstat", "read", "listdir"})


class Killed(BaseException):
    """The process is gone: no handler of `Exception` or `OSError` may see this, and nothing runs afterwards."""


class FaultKind(StrEnum):
    KILL = "kill"
    EIO = "EIO"
    ENOSPC = "ENOSPC"
    EINTR = "EINTR"
    SHORT = "short"


_ERRNO = {FaultKind.EIO: errno.EIO, FaultKind.ENOSPC: errno.ENOSPC, FaultKind.EINTR: errno.EINTR}

Image = Mapping[str, bytes]


@dataclass
class _Inode:
    contents: list[bytes] = field(default_factory=lambda: [b""])
    poisoned: bool = False

    @property
    def cached(self) -> bytes:
        return self.contents[-1]

    def possible(self) -> frozenset[bytes]:
        found = set(self.contents)
        if len(self.contents) > 1:
            found |= {content[: len(content) // 2] for content in self.contents}
        return frozenset(found)


@dataclass
class _NameChange:
    """`target` None removes the name; `source` is the name that a rename also removes."""

    name: str
    target: _Inode | None
    source: str | None = None
    durable: bool = False
    poisoned: bool = False


class Kernel:
    """What survives the death of a process but not a power cut: one directory's cached and durable state."""

    def __init__(self, directory: str) -> None:
        self.names: dict[str, _Inode] = {}
        for name in os.listdir(directory):
            with open(os.path.join(directory, name), "rb") as stream:
                self.names[name] = _Inode([stream.read()])
        self._durable = dict(self.names)
        self._changes: list[_NameChange] = []

    def create(self, name: str) -> _Inode:
        inode = _Inode()
        self._change(_NameChange(name, inode))
        return inode

    def _change(self, change: _NameChange) -> None:
        self._changes.append(change)
        _apply(self.names, change)

    def rename(self, source: str, target: str) -> None:
        self._change(_NameChange(target, self.names[source], source))

    def unlink(self, name: str) -> None:
        self._change(_NameChange(name, None))

    @staticmethod
    def set_content(inode: _Inode, content: bytes) -> None:
        inode.contents.append(content)

    @staticmethod
    def sync_file(inode: _Inode, *, failed: bool) -> None:
        if failed:
            inode.poisoned = True  # the dirty pages may have been dropped: a later success proves nothing
        elif not inode.poisoned:
            inode.contents = [inode.cached]

    def sync_directory(self, *, failed: bool) -> None:
        for change in self._changes:
            if failed:
                change.poisoned = change.poisoned or not change.durable
            elif not change.poisoned:
                change.durable = True

    def images(self) -> Iterator[Image]:
        """Every directory that a power cut at this instant may leave."""
        open_changes = [change for change in self._changes if not change.durable]
        for kept in itertools.product((False, True), repeat=len(open_changes)):
            lost = {id(change) for change, keep in zip(open_changes, kept, strict=True) if not keep}
            names = dict(self._durable)
            for change in self._changes:
                if id(change) not in lost:
                    _apply(names, change)
            ordered = sorted(names)
            for contents in itertools.product(*(sorted(names[name].possible()) for name in ordered)):
                yield dict(zip(ordered, contents, strict=True))

    def settle(self) -> None:
        """Forget changes that are durable and precede every open one; keeps the number of images small."""
        while self._changes and self._changes[0].durable:
            _apply(self._durable, self._changes.pop(0))


def _apply(names: dict[str, _Inode], change: _NameChange) -> None:
    if change.source is not None:
        names.pop(change.source, None)
    if change.target is None:
        names.pop(change.name, None)
    else:
        names[change.name] = change.target


@dataclass(frozen=True)
class Fault:
    """What happens at the call with this index, counted from `FaultDisk.arm`."""

    index: int
    kind: FaultKind


class FaultDisk(PosixDisk):
    """The real disk, with every call numbered, one of them failing, and a model of durability kept beside it."""

    __slots__ = ("_armed", "_fault", "_files", "_open", "_tokens", "calls", "dead", "kernel", "on_call")

    def __init__(self, kernel: Kernel, *, token_seed: int = 0) -> None:
        super().__init__()
        self.kernel = kernel
        self.calls: list[str] = []
        self.dead = False
        self.on_call = lambda: None
        self._fault: Fault | None = None
        self._armed = False
        self._open: set[int] = set()
        self._files: dict[int, _Inode | None] = {}
        self._tokens = itertools.count(token_seed)

    def arm(self, fault: Fault | None) -> None:
        """From now on count calls, and fail the one that the fault names."""
        self.calls = []
        self._fault = fault
        self._armed = True

    def bury(self) -> None:
        """Close what the dead process had open, as the kernel would."""
        for fd in self._open:
            os.close(fd)
        self._open.clear()

    def _enter(self, call: str) -> FaultKind | None:
        if self.dead:
            raise Killed
        if not self._armed:
            return None
        index = len(self.calls)
        self.calls.append(call)
        if self._fault is None or self._fault.index != index:
            return None
        if self._fault.kind is FaultKind.KILL:
            self.dead = True
            raise Killed
        return self._fault.kind

    def _fail(self, call: str) -> None:
        kind = self._enter(call)
        if kind in _ERRNO:
            number = _ERRNO[kind]
            raise OSError(number, os.strerror(number))

    def _after(self) -> None:
        if self._armed:
            self.on_call()

    def open(self, name: str, flags: int, mode: int = 0o600, *, dir_fd: int | None = None) -> int:
        self._fail("open")
        fd = super().open(name, flags, mode, dir_fd=dir_fd)
        self._open.add(fd)
        self._files[fd] = None
        if flags & (os.O_WRONLY | os.O_RDWR):
            if name not in self.kernel.names:
                self.kernel.create(name)
            elif flags & os.O_TRUNC:
                self.kernel.set_content(self.kernel.names[name], b"")
            self._files[fd] = self.kernel.names[name]
        self._after()
        return fd

    def close(self, fd: int) -> None:
        kind = self._enter("close")
        self._open.discard(fd)
        super().close(fd)
        if kind in _ERRNO:  # close always gives the descriptor back, whatever it answers
            raise OSError(_ERRNO[kind], os.strerror(_ERRNO[kind]))
        self._after()

    def read(self, fd: int, size: int) -> bytes:
        self._fail("read")
        return super().read(fd, size)

    def write(self, fd: int, data: memoryview) -> int:
        kind = self._enter("write")
        if kind in _ERRNO:
            raise OSError(_ERRNO[kind], os.strerror(_ERRNO[kind]))
        if kind is FaultKind.SHORT:
            data = data[: max(1, len(data) // 2)]
        written = super().write(fd, data)
        inode = self._files[fd]
        assert inode is not None
        self.kernel.set_content(inode, inode.cached + bytes(data[:written]))
        self._after()
        return written

    def fsync(self, fd: int) -> None:
        kind = self._enter("fsync")
        inode = self._files.get(fd)
        if kind in _ERRNO:
            if inode is None:
                self.kernel.sync_directory(failed=True)
            else:
                self.kernel.sync_file(inode, failed=True)
            raise OSError(_ERRNO[kind], os.strerror(_ERRNO[kind]))
        # the model is what decides what survives: waiting for the real disk would prove nothing more
        if inode is None:
            self.kernel.sync_directory(failed=False)
        else:
            self.kernel.sync_file(inode, failed=False)
        self._after()

    def fchmod(self, fd: int, mode: int) -> None:
        self._fail("fchmod")
        super().fchmod(fd, mode)
        self._after()

    def fstat(self, fd: int) -> os.stat_result:
        self._fail("fstat")
        return super().fstat(fd)

    def lstat(self, name: str, *, dir_fd: int | None = None) -> os.stat_result:
        self._fail("lstat")
        return super().lstat(name, dir_fd=dir_fd)

    def rename(self, source: str, target: str, *, dir_fd: int) -> None:
        self._fail("rename")
        super().rename(source, target, dir_fd=dir_fd)
        self.kernel.rename(source, target)
        self._after()

    def unlink(self, name: str, *, dir_fd: int) -> None:
        self._fail("unlink")
        super().unlink(name, dir_fd=dir_fd)
        self.kernel.unlink(name)
        self._after()

    def listdir(self, fd: int) -> list[str]:
        self._fail("listdir")
        return super().listdir(fd)

    def token(self) -> str:
        return f"{next(self._tokens):032x}"


class QuickDisk(PosixDisk):
    """The real disk without waiting for it."""

    __slots__ = ()

    def fsync(self, fd: int) -> None:
        os.fstat(fd)
