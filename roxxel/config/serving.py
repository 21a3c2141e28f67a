"""`--mode=serve`: the model of a run behind an OpenAI-compatible address."""

import ipaddress
import signal
import socket
import threading
from collections.abc import Callable
from typing import Any

from roxxel import errors
from roxxel.config import arguments, continuing, imports, resolve, say
from roxxel.errors import ConfigError

_LOCAL = "127.0.0.1"
_CLOSE_SECS = 8  # for answers on their way after SIGTERM


def run(found: resolve.Experiment, line: arguments.CommandLine) -> int:
    """Serves until SIGTERM or SIGINT; the exit code.

    Raises:
      ConfigError: a flag or the run is not as it has to be, or the port is taken.
    """
    host = line.get("host") or _LOCAL
    port = continuing.whole(line, "port", 8000, least=0)
    limits = {
        "max_rows": continuing.whole(line, "max_rows", 16),
        "max_length": continuing.whole(line, "max_length", 2048, least=2),
        "max_queue": continuing.whole(line, "max_queue", 64),
    }
    _check_packages()
    listening = _listening(host, port)
    with listening:
        ready = continuing.ready(found, line)
        _serve(ready, listening, host, limits)
    return errors.EXIT_OK


def _check_packages() -> None:
    try:
        import uvicorn  # noqa: F401

        from roxxel.serving import app  # noqa: F401
    except ImportError as err:
        raise ConfigError(
            "--mode=serve needs starlette and uvicorn: pip install 'roxxel[serve]'."
        ) from err


def _listening(host: str, port: int) -> socket.socket:
    """A bound socket: a port that is taken is found before the model is read."""
    try:
        if port > 65535:
            raise ConfigError(f"--port={port}: there are ports up to 65535.")
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        )[0]
        found = socket.socket(family, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except (OSError, UnicodeError) as err:
        why = getattr(err, "strerror", None) or "no name of a host"
        raise ConfigError(
            f"--host={host} --port={port}: cannot be listened at: {why}."
        ) from err
    return found


def _serve(
    ready: continuing.Ready,
    listening: socket.socket,
    host: str,
    limits: dict[str, int],
) -> None:
    import uvicorn

    from roxxel.serving import app, engine

    name = ready.run.workdir.name
    address, port = listening.getsockname()[:2]
    is_local = _is_local(address)
    if not is_local:
        say.lines(
            [f"roxxel: warning: --host={host}: anyone who reaches it can use the model"]
        )
    loop = engine.Engine(ready.decoder, **limits)
    web = app.make(
        loop,
        model=name,
        tokenizer=ready.tokenizer,
        encode=ready.encode,
        end_id=ready.end_id,
        only_local=is_local,
    )
    try:
        loop.start()
    except Exception as err:
        shown = " ".join(f"--{flag}={value}" for flag, value in limits.items())
        why = imports.one_line(err)
        raise ConfigError(f"{shown}: there is no room for so much: {why}") from err
    listening.listen()  # so that who reads the line below can connect
    shown = f"[{address}]" if ":" in address else address
    say.lines(
        [f"roxxel: {name}, step {ready.run.step}, at http://{shown}:{port}/ and /v1"]
    )
    try:
        _run(uvicorn, web, listening, loop.close)
    finally:
        loop.close()


def _run(
    uvicorn: Any, web: Any, listening: socket.socket, close: Callable[[], None]
) -> None:
    config = uvicorn.Config(
        web,
        log_level="warning",
        timeout_graceful_shutdown=2 * _CLOSE_SECS,
        server_header=False,
    )
    server = uvicorn.Server(config)
    handle_exit = server.handle_exit

    def end(*args: Any) -> None:
        """What is not ready by then is told that it is cut off."""
        late = threading.Timer(_CLOSE_SECS, close)
        late.daemon = True
        late.start()
        handle_exit(*args)

    server.handle_exit = end
    # uvicorn raises the signal that ended it again, for the handler of before.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        server.run(sockets=[listening])
    except KeyboardInterrupt:
        return
    finally:
        signal.signal(signal.SIGTERM, before)


def _is_local(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
