"""Standard streams that end early, are full or closed: quiet where a filter is quiet, an error where output is lost."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli import CONSOLE, MODULE, ROOT, environment, run_cli

BUFFERING = [{}, {"PYTHONUNBUFFERED": "1"}]


def _shell(command: str, **env: str) -> subprocess.CompletedProcess[str]:
    python = f"{sys.executable} -m sndr.cli"
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command.replace("SNDR", python)],
        env=environment(**env), capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize("env", BUFFERING)
@pytest.mark.parametrize("args", ["routing-table --json", "--version", "--help", "routing-table --help"])
def test_a_full_device_is_an_error(args: str, env: dict[str, str]) -> None:
    done = _shell(f"SNDR {args} > /dev/full", **env)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "No space left on device" in done.stderr


@pytest.mark.parametrize("env", BUFFERING)
def test_a_file_that_takes_only_part_is_an_error(tmp_path: Path, env: dict[str, str]) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))

    with open(tmp_path / "out", "wb") as out:
        done = subprocess.run(
            [*MODULE, "routing-table"], env=environment(PYTHONDONTWRITEBYTECODE="1", **env), stdout=out,
            stderr=subprocess.PIPE, text=True, preexec_fn=limit, timeout=60,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "sndr routing-table: output_failed: standard output: File too large\n"


@pytest.mark.parametrize("env", BUFFERING)
def test_a_reader_that_goes_away_ends_it_quietly(env: dict[str, str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*MODULE, "routing-table"], env=environment(**env), stdout=writer, stderr=subprocess.PIPE, timeout=60
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, b"")


def test_head_takes_its_line_and_nobody_complains() -> None:
    done = _shell("SNDR routing-table | head -n 1")
    assert (done.stdout, done.stderr) == ("{\n", "")


def test_a_closed_standard_output_is_an_error() -> None:
    done = _shell("SNDR routing-table >&-")
    assert (done.returncode, done.stderr) == (
        1,
        "sndr routing-table: output_failed: standard output is closed\n",
    )


def test_a_closed_or_full_standard_error_changes_no_exit_code() -> None:
    for stream in ("2>&-", "2>/dev/full"):
        assert _shell(f"SNDR routing-table --validate {stream}").returncode == 0
        assert _shell(f"SNDR routing-table --out '' {stream}").returncode == 2


def test_a_closed_standard_input_is_named() -> None:
    done = _shell("SNDR routing-table check - <&-")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "sndr routing-table: file_unreadable: standard input: closed\n"


def test_interrupt_is_quiet_and_tells_the_shell() -> None:
    reader, writer = os.pipe()
    with subprocess.Popen(
        [*MODULE, "routing-table", "check", "-"], env=environment(PYTHONPROFILEIMPORTTIME=""), stdin=reader,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        os.close(reader)
        os.write(writer, b" " * 4096)
        try:
            _wait_until_drained(writer)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
            os.close(writer)
    assert (process.returncode, out, err) == (-signal.SIGINT, b"", b"")


def test_the_tests_of_interrupts_also_end_in_the_background_of_a_shell() -> None:
    code = "import tests.conftest, signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    words = ["bash", "-c", 'trap "" INT; exec "$@"', "bash", MODULE[0], "-c", code]
    done = subprocess.run(words, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")


@pytest.mark.parametrize("entry", [MODULE, CONSOLE])
def test_an_interrupt_during_the_imports_is_quiet_too(tmp_path: Path, entry: tuple[str, ...]) -> None:
    (tmp_path / "click.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    env = environment()
    env["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{env['PYTHONPATH']}"
    done = run_cli("--help", entry=entry, env=env)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def _wait_until_drained(writer: int) -> None:
    """Wait for the fact that the command reads: all that fits into the pipe was taken out of it."""
    import array
    import fcntl
    import termios
    import threading

    waiting = array.array("i", [1])
    pause = threading.Event()
    for _ in range(3000):
        fcntl.ioctl(writer, termios.FIONREAD, waiting)
        if waiting[0] == 0:
            return
        pause.wait(0.01)
    raise AssertionError("nobody read")


def test_unknown_verbs_and_none_are_usage_errors() -> None:
    for args, text in {
        (): "sndr: usage: a verb is needed (allowed: routing-table, preset, ",
        ("preset",): "sndr preset: usage: a verb is needed (allowed: list, ",
        ("prset",): "sndr: usage: no verb 'prset' (did you mean preset?)",
        ("--nope",): "sndr: usage: No such option",
    }.items():
        done = run_cli(*args)
        assert (done.returncode, done.stdout) == (2, "")
        assert text in done.stderr
