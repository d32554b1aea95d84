"""Writers that leave out one thing each. Every harness of this repository must catch every one of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from sndr.durable import Definite, Disk, Done, Outcome, Uncertain, file_id, temp_name


def _write_all(disk: Disk, fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[disk.write(fd, view) :]


def _replace(disk: Disk, dir_fd: int, name: str, data: bytes, *, sync_file: bool, sync_directory: bool) -> Outcome:
    temp = temp_name(name, disk.token())
    step = "open"
    try:
        fd = disk.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=dir_fd)
        step = "write"
        _write_all(disk, fd, data)
        if sync_file:
            disk.fsync(fd)
        made = disk.fstat(fd)
        disk.close(fd)
        disk.rename(temp, name, dir_fd=dir_fd)
    except OSError as error:
        return Definite(step, error.errno or 5)
    if sync_directory:
        try:
            disk.fsync(dir_fd)
        except OSError as error:
            return Uncertain("fsync_dir", error.errno or 5, file_id(made))
    return Done(file_id(made))


def no_file_sync(disk: Disk, dir_fd: int, name: str, data: bytes) -> Outcome:
    return _replace(disk, dir_fd, name, data, sync_file=False, sync_directory=True)


def no_directory_sync(disk: Disk, dir_fd: int, name: str, data: bytes) -> Outcome:
    return _replace(disk, dir_fd, name, data, sync_file=True, sync_directory=False)


def ignores_directory_sync_error(disk: Disk, dir_fd: int, name: str, data: bytes) -> Outcome:
    outcome = _replace(disk, dir_fd, name, data, sync_file=True, sync_directory=True)
    return Done(outcome.file) if isinstance(outcome, Uncertain) else outcome


def calls_directory_sync_error_a_failure(disk: Disk, dir_fd: int, name: str, data: bytes) -> Outcome:
    outcome = _replace(disk, dir_fd, name, data, sync_file=True, sync_directory=True)
    return Definite(outcome.step, outcome.errno) if isinstance(outcome, Uncertain) else outcome


def in_place(disk: Disk, dir_fd: int, name: str, data: bytes) -> Outcome:
    try:
        fd = disk.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600, dir_fd=dir_fd)
        _write_all(disk, fd, data)
        disk.fsync(fd)
        made = disk.fstat(fd)
        disk.close(fd)
        disk.fsync(dir_fd)
    except OSError as error:
        return Definite("in_place", error.errno or 5)
    return Done(file_id(made))


def one_write(disk: Disk, dir_fd: int, name: str, data: bytes) -> Outcome:
    """Takes a short write for a whole one."""
    temp = temp_name(name, disk.token())
    try:
        fd = disk.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=dir_fd)
        disk.write(fd, memoryview(data))
        disk.fsync(fd)
        made = disk.fstat(fd)
        disk.close(fd)
        disk.rename(temp, name, dir_fd=dir_fd)
        disk.fsync(dir_fd)
    except OSError as error:
        return Definite("one_write", error.errno or 5)
    return Done(file_id(made))


def repeats_file_sync(disk: Disk, dir_fd: int, name: str, data: bytes) -> Outcome:
    """Calls fsync again after it failed, and believes the second answer."""
    temp = temp_name(name, disk.token())
    try:
        fd = disk.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=dir_fd)
        _write_all(disk, fd, data)
        try:
            disk.fsync(fd)
        except OSError:
            disk.fsync(fd)
        made = disk.fstat(fd)
        disk.close(fd)
        disk.rename(temp, name, dir_fd=dir_fd)
        disk.fsync(dir_fd)
    except OSError as error:
        return Definite("repeat", error.errno or 5)
    return Done(file_id(made))


def repeats_directory_sync(disk: Disk, dir_fd: int, name: str, data: bytes) -> Outcome:
    outcome = _replace(disk, dir_fd, name, data, sync_file=True, sync_directory=True)
    if isinstance(outcome, Uncertain):
        disk.fsync(dir_fd)
        return Done(outcome.file)
    return outcome


BROKEN: Mapping[str, Callable[[Disk, int, str, bytes], Outcome]] = {
    writer.__name__: writer
    for writer in (
        no_file_sync,
        no_directory_sync,
        ignores_directory_sync_error,
        calls_directory_sync_error_a_failure,
        in_place,
        one_write,
        repeats_file_sync,
        repeats_directory_sync,
    )
}
