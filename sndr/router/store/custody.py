"""Who can touch the authority: the directory, the file, and the file system below them.

The rules are those of a private key. Every directory from the root down is opened by name inside its parent, so that
a symbolic link anywhere is seen and not followed; the last one is kept open, and everything after that happens inside
it whatever the path means later. Nothing here is repaired: one refusal, one code.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import sys
from dataclasses import dataclass
from typing import Final

from sndr.durable import Disk, file_id
from sndr.errors import AuthorityError

__all__ = [
    "NAME_PATTERN",
    "Mount",
    "check_file",
    "check_filesystem",
    "check_platform",
    "file_problems",
    "foreign",
    "open_directory",
    "parse_mountinfo",
    "read_file",
    "split_path",
]

NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
PATH_BYTES_MAX: Final = 1024
FILE_MODE: Final = 0o600
_READ_SIZE: Final = 65_536
_PLATFORM: str = sys.platform
_DIRECTORY_FLAGS: Final = tuple(getattr(os, name, 0) for name in ("O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC"))
_NETWORK: Final = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "coda", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4"}
    | {"ocfs2", "orangefs", "smb3", "smbfs", "vboxsf", "virtiofs", "vmhgfs"}
)
_VOLATILE: Final = frozenset({"tmpfs", "ramfs", "devtmpfs", "rootfs"})
_ACL_NAMES: Final = ("system.posix_acl_access", "system.posix_acl_default")
_NO_ATTRIBUTE: Final = frozenset({errno.ENODATA, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of `/proc/self/mountinfo`, as far as it is needed."""

    id: int
    point: str
    fstype: str


def check_platform() -> None:
    """Refuse a platform that lacks one of the primitives; there is no weaker mode.

    Raises:
        AuthorityError: `route_platform_unsupported`.
    """
    missing = [
        name for name in ("O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC", "fchmod", "geteuid") if not hasattr(os, name)
    ]
    missing += [call.__name__ for call in (os.open, os.stat, os.unlink, os.rename) if call not in os.supports_dir_fd]
    try:
        import fcntl  # absent on Windows, and needed only when the authority is on
    except ImportError:
        missing.append("fcntl")
    else:
        if not hasattr(fcntl, "flock"):
            missing.append("flock")
    if missing:
        raise AuthorityError(
            "route_platform_unsupported",
            f"server.route_state_path needs POSIX files; missing here: {', '.join(missing)}",
        )


def split_path(path: str) -> tuple[str, str]:
    """Directory and name of an authority path.

    Raises:
        AuthorityError: `route_custody_parent`; the path is not plain and absolute.
    """
    components = path.split("/")
    if (
        not path.startswith("/")
        or "\0" in path
        or len(os.fsencode(path)) > PATH_BYTES_MAX
        or any(component in ("", ".", "..") for component in components[1:])
    ):
        raise AuthorityError(
            "route_custody_parent", f"the path must be absolute, without . or .. and at most {PATH_BYTES_MAX} bytes"
        )
    if NAME_PATTERN.fullmatch(components[-1]) is None:
        raise AuthorityError(
            "route_custody_parent",
            "the file name must be 1 to 128 of A-Z a-z 0-9 . _ - and start with a letter or digit",
        )
    return "/".join(components[:-1]) or "/", components[-1]


def open_directory(disk: Disk, directory: str) -> int:
    """Open the directory of the authority, component by component from the root.

    Returns:
        A descriptor that the caller closes. It stays with this directory if the path is renamed.

    Raises:
        AuthorityError: `route_custody_parent` for a component above, `route_custody_directory` and `route_custody_acl`
            for the directory itself.
    """
    names = [name for name in directory.split("/") if name]
    flags = os.O_RDONLY
    for flag in _DIRECTORY_FLAGS:
        flags |= flag
    shown = "/"
    fd = _open_component(disk, "/", flags, None, shown, last=not names)
    try:
        _check_directory(disk.fstat(fd), shown, last=not names)
        for index, name in enumerate(names):
            last = index == len(names) - 1
            shown = f"{shown.rstrip('/')}/{name}"
            parent, fd = fd, _open_component(disk, name, flags, fd, shown, last=last)
            disk.close(parent)
            _check_directory(disk.fstat(fd), shown, last=last)
        _check_acl(fd, shown)
    except BaseException:
        with contextlib.suppress(OSError):
            disk.close(fd)
        raise
    return fd


def _open_component(disk: Disk, name: str, flags: int, dir_fd: int | None, shown: str, *, last: bool) -> int:
    code = "route_custody_directory" if last else "route_custody_parent"
    try:
        return disk.open(name, flags, dir_fd=dir_fd)
    except OSError as error:
        reason = error.strerror
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            reason = "is a symbolic link or not a directory; links are not followed"
        elif error.errno == errno.ENOENT:
            reason = "does not exist; create it with mode 0700, owned by the user of the router"
        raise AuthorityError(code, f"{shown}: {reason}") from None


def foreign(found: os.stat_result, shown: str) -> str:
    """That a file is another user's. Which of the two is wrong only a person knows: root may look at a good file."""
    return (
        f"{shown}: belongs to uid {found.st_uid}, this process is uid {os.geteuid()}: both must be the gateway's user"
    )


def _check_directory(found: os.stat_result, shown: str, *, last: bool) -> None:
    if last:
        if found.st_uid != os.geteuid():
            raise AuthorityError("route_custody_directory", foreign(found, shown))
        if stat.S_IMODE(found.st_mode) & 0o077:
            raise AuthorityError("route_custody_directory", f"{shown}: must have mode 0700 (no group or other access)")
    elif found.st_uid not in (0, os.geteuid()):
        raise AuthorityError("route_custody_parent", f"{shown}: must belong to root or uid {os.geteuid()}")
    elif found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX:
        raise AuthorityError("route_custody_parent", f"{shown}: must not be writable by group or others")


def file_problems(found: os.stat_result, shown: str) -> list[AuthorityError]:
    """Everything that makes a file not plainly ours: type, links, owner, mode."""
    problems = []
    if not stat.S_ISREG(found.st_mode):
        problems.append(AuthorityError("route_custody_type", f"{shown}: must be a regular file"))
    elif found.st_nlink != 1:
        text = f"{shown}: has {found.st_nlink} links; exactly one is allowed"
        problems.append(AuthorityError("route_custody_links", text))
    if found.st_uid != os.geteuid():
        problems.append(AuthorityError("route_custody_owner", foreign(found, shown)))
    mode = stat.S_IMODE(found.st_mode)
    if mode != FILE_MODE:
        problems.append(AuthorityError("route_custody_mode", f"{shown}: must have mode 0600, has {mode:04o}"))
    return problems


def check_file(found: os.stat_result, shown: str) -> None:
    """Refuse a file that is not plainly ours.

    Raises:
        AuthorityError: the first of `file_problems`.
    """
    for problem in file_problems(found, shown):
        raise problem


def read_file(disk: Disk, dir_fd: int, name: str, shown: str, limit: int) -> tuple[bytes, os.stat_result]:
    """Read a whole file of ours without ever blocking on it or reading more than `limit` bytes.

    Raises:
        FileNotFoundError: there is no such name.
        AuthorityError: a custody code, or `route_state_too_large`.
        OSError: the disk failed.
    """
    named = disk.lstat(name, dir_fd=dir_fd)
    check_file(named, shown)
    try:
        fd = disk.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=dir_fd)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise AuthorityError("route_custody_type", f"{shown}: changed its type while it was opened") from None
        raise
    try:
        found = disk.fstat(fd)
        check_file(found, shown)
        if file_id(found) != file_id(named):
            raise AuthorityError("route_custody_type", f"{shown}: was replaced while it was opened")
        _check_acl(fd, shown)
        if found.st_size > limit:
            raise AuthorityError(
                "route_state_too_large", f"{shown}: has {found.st_size} bytes, at most {limit} are allowed"
            )
        chunks = []
        size = 0
        while size <= limit:
            chunk = disk.read(fd, _READ_SIZE)
            if not chunk:
                break
            chunks.append(chunk)
            size += len(chunk)
        if size != found.st_size:
            raise AuthorityError("route_custody_type", f"{shown}: changed its size while it was read")
        return b"".join(chunks), found
    finally:
        disk.close(fd)


def _check_acl(fd: int, shown: str) -> None:
    getxattr = getattr(os, "getxattr", None)
    if getxattr is None:
        return
    for name in _ACL_NAMES:
        try:
            getxattr(fd, name)
        except OSError as error:
            if error.errno in _NO_ATTRIBUTE:
                continue
            raise
        raise AuthorityError("route_custody_acl", f"{shown}: has a POSIX ACL ({name}); remove it with setfacl -b -k")


def check_filesystem(dir_fd: int, directory: str, names: tuple[str, ...], *, allow_volatile: bool = False) -> None:
    """Refuse file systems that cannot promise durability, and a file that is a mount of its own.

    Args:
        dir_fd: The open directory.
        directory: Its path.
        names: The files inside it that will be replaced or locked.
        allow_volatile: Accept tmpfs and ramfs; for tests only, what they hold does not survive a power loss.

    Raises:
        AuthorityError: `route_filesystem_unsupported`.
    """
    if _PLATFORM != "linux":
        return  # no other platform tells Python what is mounted where
    try:
        mounts = parse_mountinfo(_read_text("/proc/self/mountinfo"))
        mount_id = _mount_id(_read_text(f"/proc/self/fdinfo/{dir_fd}"))
    except OSError as error:
        raise AuthorityError(
            "route_filesystem_unsupported", f"cannot tell what is mounted where: {error.filename}: {error.strerror}"
        ) from None
    mount = _find_mount(mounts, mount_id, directory)
    fstype = "unknown" if mount is None else mount.fstype
    if mount is None or fstype in _NETWORK or fstype.startswith("fuse"):
        raise AuthorityError("route_filesystem_unsupported", f"{directory}: is on {fstype}; a local disk is needed")
    if fstype in _VOLATILE and not allow_volatile:
        raise AuthorityError(
            "route_filesystem_unsupported", f"{directory}: is on {fstype}, which forgets at power loss"
        )
    for name in names:
        path = f"{directory.rstrip('/')}/{name}"
        if any(entry.point == path for entry in mounts):
            raise AuthorityError(
                "route_filesystem_unsupported",
                f"{path}: is a mount of its own and cannot be replaced; mount the folder",
            )


def parse_mountinfo(text: str) -> tuple[Mount, ...]:
    """The mounts in `/proc/self/mountinfo`, in its order; unreadable lines are left out."""
    mounts = []
    for line in text.split("\n"):
        head, separator, tail = line.partition(" - ")
        fields, source = head.split(" "), tail.split(" ")
        if separator and len(fields) >= 5 and fields[0].isdigit():
            point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), fields[4])
            mounts.append(Mount(int(fields[0]), point, source[0]))
    return tuple(mounts)


def _find_mount(mounts: tuple[Mount, ...], mount_id: int | None, directory: str) -> Mount | None:
    for mount in mounts:
        if mount.id == mount_id:
            return mount
    # Kernels before 3.15 do not tell the mount of a descriptor: take the longest mount point above the path, the last
    # one if several are stacked.
    above = [mount for mount in mounts if f"{directory}/".startswith(f"{mount.point.rstrip('/')}/")]
    return max(reversed(above), key=lambda mount: len(mount.point), default=None)


def _mount_id(fdinfo: str) -> int | None:
    match = re.search(r"^mnt_id:\s*([0-9]+)$", fdinfo, re.MULTILINE)
    return None if match is None else int(match.group(1))


def _read_text(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape") as stream:
        return stream.read()
