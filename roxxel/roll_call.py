"""The processes of a run find each other, and can say who is missing.

jax's own joining ends the process from C++ when the time is over, without saying who
came. So before it, process 0 listens at the coordinator's address until all others have
called, and lets go of the port; the others wait for its word.

A call is one line `roxxel INDEX COUNT`, the answer `go` or `no REASON`.
"""

import contextlib
import selectors
import socket
import time
from collections.abc import Iterable

from roxxel.errors import EXIT_ERROR, ConfigError

_RETRY_SECS = 0.2
_MAX_LINE = 4096
RAISE_LIMIT = "--init_timeout raises the limit"


class JoinError(RuntimeError):
    """The processes of a run did not find each other; says who is missing."""

    exit_code = EXIT_ERROR


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port`.

    Raises:
      ConfigError: there is no port, or it is none.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(
            f"coordinator {address!r}: expected host:port of process 0, such as "
            "10.0.0.1:8476."
        )
    return host.strip("[]"), int(port)


def gather(address: str, count: int, timeout_secs: float) -> None:
    """Process 0: waits until all others have called.

    Raises:
      JoinError: the port is in use, or not all called in time.
      ConfigError: two processes have the same index, or another number of processes.
    """
    _, port = split_address(address)
    until = time.monotonic() + timeout_secs
    callers: dict[int, socket.socket] = {}
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(_listen(address, port))
        selector = stack.enter_context(selectors.DefaultSelector())
        selector.register(listening, selectors.EVENT_READ)
        try:
            while len(callers) < count - 1:
                if not selector.select(min(1.0, until - time.monotonic())):
                    if time.monotonic() >= until:
                        raise _missing(address, callers, count, timeout_secs)
                    continue
                _take_call(stack, listening, callers, count)
        except (JoinError, ConfigError) as err:
            _answer(callers.values(), f"no {err}")
            raise
        _answer(callers.values(), "go")


def call(address: str, index: int, count: int, timeout_secs: float) -> None:
    """Any other process: tells process 0 that it is there, and waits for the rest.

    Raises:
      JoinError: process 0 cannot be reached, or says that not all came in time.
    """
    host, port = split_address(address)
    until = time.monotonic() + timeout_secs
    problem = "no answer"
    while (left := until - time.monotonic()) > 0:
        try:
            with socket.create_connection((host, port), timeout=left) as line:
                line.sendall(f"roxxel {index} {count}\n".encode())
                # Process 0 speaks first about who is missing.
                line.settimeout(max(until - time.monotonic(), 0) + 2.0)
                answer = _read_line(line)
        except OSError as err:
            problem = err.strerror or str(err)
        else:
            if answer == "go":
                return
            if answer.startswith("no "):
                raise JoinError(answer[3:])
            problem = "what answers there is no process of this run"
        time.sleep(min(_RETRY_SECS, max(until - time.monotonic(), 0)))
    raise JoinError(
        f"process {index} of {count} cannot reach the coordinator {address} within "
        f"{timeout_secs:g} s: {problem}. Is process 0 running, and the address that of "
        f"its host? {RAISE_LIMIT}."
    )


def _listen(address: str, port: int) -> socket.socket:
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    try:
        return socket.create_server(
            ("", port), family=family, backlog=1024, dualstack_ipv6=dual
        )
    except OSError as err:
        raise JoinError(
            f"coordinator {address}: process 0 cannot listen on port {port}: "
            f"{err.strerror}. Choose another one with --coordinator=HOST:PORT in all "
            "processes, or end what uses it."
        ) from err


def _take_call(
    stack: contextlib.ExitStack,
    listening: socket.socket,
    callers: dict[int, socket.socket],
    count: int,
) -> None:
    """One more caller; whoever does not speak the line's language is hung up on."""
    line, _ = listening.accept()
    stack.enter_context(line)
    line.settimeout(1.0)
    try:
        words = _read_line(line).split()
    except OSError:
        words = []
    if len(words) != 3 or words[0] != "roxxel" or not "".join(words[1:]).isdecimal():
        line.close()
        return
    index, their_count = int(words[1]), int(words[2])
    if their_count != count:
        callers[-1] = line
        raise ConfigError(
            f"process {index} was started as one of {their_count} processes, process 0 "
            f"as one of {count}."
        )
    if index in callers and _is_open(callers[index]):
        callers[-1] = line
        raise ConfigError(f"two processes were started as process {index} of {count}.")
    callers[index] = line


def _missing(
    address: str, callers: Iterable[int], count: int, timeout_secs: float
) -> JoinError:
    seen = sorted({0, *callers})
    absent = [index for index in range(count) if index not in seen]
    shown = ", ".join(map(str, absent[:10])) + (", ..." if len(absent) > 10 else "")
    return JoinError(
        f"coordinator {address}: {len(seen)} of {count} processes came within "
        f"{timeout_secs:g} s; missing: {shown}. {RAISE_LIMIT}."
    )


def _answer(lines: Iterable[socket.socket], text: str) -> None:
    for line in lines:
        with contextlib.suppress(OSError):
            line.sendall(f"{text}\n".encode())


def _read_line(line: socket.socket) -> str:
    """Up to the end of the line, or what came before the other side hung up."""
    data = b""
    while not data.endswith(b"\n") and len(data) < _MAX_LINE:
        more = line.recv(_MAX_LINE)
        if not more:
            break
        data += more
    return data.decode("utf-8", "replace").strip()


def _is_open(line: socket.socket) -> bool:
    """Whether the other side has not hung up."""
    try:
        line.setblocking(False)
        return line.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        line.setblocking(True)
