"""The only place that writes to the standard streams.

Standard output carries the answer and nothing else; everything said about it goes to standard error, one ASCII line
each. Bytes go to the descriptor itself: Python's text layer over an unbuffered stream (``PYTHONUNBUFFERED``) takes a
short write for a whole one, so a full disk would pass for success.
"""

from __future__ import annotations

import os
import select
import sys

from sndr.errors import SndrError

__all__ = ["CommandError", "OutputError", "close_stdout", "one_line", "write_err", "write_out"]


class OutputError(SndrError):
    """Standard output did not take the whole answer."""


class CommandError(SndrError):
    """A verb ends with an exit code of its own.

    Attributes:
        exit_code: What the process exits with; any other error of this package exits 1.
    """

    def __init__(self, code: str, message: str, exit_code: int = 1) -> None:
        super().__init__(code, message)
        self.exit_code = exit_code


def one_line(text: str) -> str:
    """Return `text` as printable ASCII on one line; everything else is escaped (file names may hold any byte)."""
    escaped = text.encode("ascii", "backslashreplace").decode("ascii")
    return "".join(
        c if " " <= c <= "~" else f"\\x{ord(c):02x}" for c in escaped.replace("\n", "\\n").replace("\t", "\\t")
    )


def write_err(text: str) -> None:
    """Say one line on standard error; a closed or full standard error never changes the outcome.

    Past Python's buffer: what a full device did not take would be tried again at exit, and end the process with 120.
    """
    line = one_line(text) + "\n"
    try:
        stream = sys.stderr
        try:
            fd = stream.fileno()
        except (AttributeError, OSError):  # a test's in-memory stream, or none at all
            stream.write(line)
            stream.flush()
            return
        stream.flush()
        _write_all(fd, line.encode("ascii"))
    except (OSError, ValueError, AttributeError):
        return


def write_out(text: str) -> None:
    """Write `text` to standard output, all of it.

    Raises:
        OutputError: The stream is closed or took less (full disk, size limit, I/O error).
        BrokenPipeError: The reader went away; the edge ends the process as SIGPIPE would.
    """
    stream = sys.stdout
    try:
        if stream is None:  # the process was started with its standard output closed
            raise OutputError("output_failed", "standard output is closed")
        try:
            fd = stream.fileno()
        except (AttributeError, OSError):  # a test's in-memory stream
            stream.write(text)
            stream.flush()
            return
        stream.flush()
        _write_all(fd, text.encode("utf-8", "backslashreplace"))
    except BrokenPipeError:
        raise
    except (OSError, ValueError) as error:
        raise OutputError("output_failed", f"standard output: {_reason(error)}") from error


def close_stdout() -> None:
    """Flush and close standard output at the end of the process; some file systems report a failed write only here.

    Raises:
        OutputError: The close failed.
        BrokenPipeError: The reader went away.
    """
    stream = sys.stdout
    if stream is None:
        return
    try:
        sys.stdout = None  # the interpreter must not flush it once more at exit: that would end the process with 120
        stream.flush()
        os.close(stream.fileno())
    except BrokenPipeError:
        raise
    except (OSError, ValueError) as error:
        raise OutputError("output_failed", f"standard output: {_reason(error)}") from error


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:  # a reader that made the pipe non-blocking; wait as a blocking write would
            select.select([], [fd], [])


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
