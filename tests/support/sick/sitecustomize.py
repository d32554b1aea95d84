"""Put on the path of a gateway process: its disk fails as a file says, and what it starts or reaches is written down.

`SNDR_SICK` names a directory: `plan.json` there holds {"id", "call": write | fsync, "on": file | directory, "skip",
"errno", "seconds"}: after `skip` such calls on the authority, one call sleeps or fails. `seen.jsonl` gets a line per
process started, signal sent and address connected to.
"""

import json
import os
import sys
import time

SICK = os.environ["SNDR_SICK"]
PLAN = os.path.join(SICK, "plan.json")
REAL = {"write": os.write, "fsync": os.fsync}
state = {"id": None, "left": 0}


def is_meant(call, on):
    try:
        with open(PLAN) as file:
            plan = json.load(file)
    except (OSError, ValueError):
        return None
    if plan["id"] != state["id"]:
        state["id"], state["left"] = plan["id"], plan["skip"] + 1
    if (plan["call"], plan["on"]) != (call, on) or state["left"] == 0:
        return None
    state["left"] -= 1
    return plan if state["left"] == 0 else None


def suffer(call, on):
    plan = is_meant(call, on)
    if plan is None:
        return
    with open(os.path.join(SICK, "struck"), "w") as file:
        file.write(plan["id"])
    time.sleep(plan["seconds"])
    if plan["errno"]:
        raise OSError(plan["errno"], "injected")


def kind(fd):
    place = os.readlink(f"/proc/self/fd/{fd}")
    if "routes.json" in os.path.basename(place):
        return "file"
    return "directory" if os.path.isdir(place) else None


def write(fd, data):
    if kind(fd) == "file":
        suffer("write", "file")
    return REAL["write"](fd, data)


def fsync(fd):
    suffer("fsync", kind(fd))
    return REAL["fsync"](fd)


os.write, os.fsync = write, fsync

EVENTS = ("subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "os.kill",
          "os.killpg", "socket.connect", "pty.spawn")  # fmt: skip
SEEN = os.open(os.path.join(SICK, "seen.jsonl"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def listen(event, arguments):
    if event in EVENTS:
        detail = list(arguments[1]) if event == "socket.connect" else repr(arguments)
        REAL["write"](SEEN, (json.dumps([event, detail]) + "\n").encode())


sys.addaudithook(listen)
