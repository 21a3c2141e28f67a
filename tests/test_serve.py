"""The completion endpoint: by OpenAI's client, by hand, in a browser, as a command."""
# ruff: noqa: E402 - what is optional is looked for first

import concurrent.futures
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

pytest.importorskip("starlette", reason="needs the extra [serve]")
uvicorn = pytest.importorskip("uvicorn", reason="needs the extra [serve]")

from starlette.responses import HTMLResponse
from starlette.routing import Route

from roxxel.config import continuing, serving
from roxxel.generation import decoding, sampling
from roxxel.generation.text import Continuation
from roxxel.serving import app as app_lib
from roxxel.serving import engine as engine_lib
from roxxel.serving import protocol
from roxxel.tokenizers.bytes import Bytes
from tests import speaking
from tests.quick import compile_quickly  # noqa: F401
from tests.tiny import compile_once  # noqa: F401

pytestmark = pytest.mark.usefixtures("compile_once", "compile_quickly")

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
PATH = "/v1/completions"
LENGTH = 250


def wait_until(condition, seconds=120):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.fixture(scope="module")
def decoder():
    return decoding.Decoder(speaking.make_model())


@pytest.fixture(scope="module")
def served(decoder):
    """The engine and the port of a server in this process."""
    ready = continuing.Ready(run=None, tokenizer=Bytes(), decoder=decoder, end_id=0)
    engine = engine_lib.Engine(decoder, max_rows=4, max_length=LENGTH, max_queue=40)
    web = app_lib.make(
        engine,
        model="toy",
        tokenizer=Bytes(),
        encode=ready.encode,
        end_id=0,
        only_local=True,
    )
    web.router.routes.append(Route("/probe", probe))
    web.router.routes.append(Route("/seen", note, methods=["POST"]))
    engine.start()
    server = uvicorn.Server(uvicorn.Config(web, log_level="warning"))
    listening = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    wait_until(lambda: server.started)
    yield engine, listening.getsockname()[1]
    server.should_exit = True
    thread.join()
    engine.close()
    listening.close()


@pytest.fixture
def client(served):
    openai = pytest.importorskip("openai", reason="needs the openai client")
    return openai.OpenAI(
        base_url=f"http://127.0.0.1:{served[1]}/v1", api_key="-", max_retries=0
    )


def post(port, body, path=PATH, **headers):
    """Status and parsed answer of one request, written by hand."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    headers = {"Content-Type": "application/json"} | headers
    body = body if isinstance(body, bytes) else json.dumps(body)
    connection.request("POST", path, body, headers)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, json.loads(text) if text[:1] == b"{" else text


def expected(decoder, prompt, count):
    """What the model says with temperature 0."""
    rows = [sampling.Sampling(temperature=0)]
    parts = decoder.continued(
        [np.frombuffer(prompt.encode(), np.uint8)],
        sampling.knobs(rows, 256),
        sampling.Kinds.of(rows),
        count,
    )
    return bytes(np.concatenate([part for _, part in parts])[:, 0].tolist()).decode()


def test_openai_client_completes_and_streams(client, decoder):
    assert [model.id for model in client.models.list()] == ["toy"]
    asked = {"model": "toy", "prompt": "hello", "max_tokens": 30, "temperature": 0}
    text = expected(decoder, "hello", 30)
    whole = client.completions.create(**asked)
    assert whole.choices[0].text == text
    assert whole.choices[0].finish_reason == "length"
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (5, 30)
    parts = list(
        client.completions.create(
            **asked, stream=True, stream_options={"include_usage": True}
        )
    )
    assert "".join(p.choices[0].text for p in parts if p.choices) == text
    assert parts[-2].choices[0].finish_reason == "length"
    assert parts[-1].usage.total_tokens == 35
    stop = text[10:13]
    stopped = client.completions.create(**asked, stop=[stop], echo=True)
    assert stopped.choices[0].text == "hello" + text[: text.index(stop)]
    assert stopped.choices[0].finish_reason == "stop"


def test_draws_follow_the_seed_and_choices_differ(client):
    asked = {"model": "toy", "prompt": ["ab", "cd"], "n": 2, "max_tokens": 20}
    asked |= {"temperature": 0.9, "top_p": 0.9}
    first, again, other = (
        [c.text for c in client.completions.create(**asked, seed=seed).choices]
        for seed in (3, 3, 4)
    )
    assert first == again != other
    assert len(set(first)) == 4


def test_32_requests_at_once_are_answered_as_if_alone(served, decoder):
    prompts = ["x" * (1 + i % 40) for i in range(32)]
    texts = {len(p): expected(decoder, p, 12) for p in set(prompts)}

    def ask(prompt):
        return post(served[1], {"prompt": prompt, "max_tokens": 12, "temperature": 0})

    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(ask, prompts))
    assert [status for status, _ in answers] == [200] * 32
    for prompt, (_, answer) in zip(prompts, answers, strict=True):
        assert answer["choices"][0]["text"] == texts[len(prompt)]


def test_more_requests_than_may_wait_are_told_to_come_again(served, monkeypatch):
    engine, port = served
    full = mock.Mock(side_effect=engine_lib.Full)
    monkeypatch.setattr(engine, "submit", full)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    headers = {"Content-Type": "application/json"}
    connection.request("POST", PATH, '{"prompt": "a"}', headers)
    answer = connection.getresponse()
    assert (answer.status, answer.headers["Retry-After"]) == (429, "1")
    assert json.load(answer)["error"]["type"] == "rate_limit_error"
    connection.close()


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"{", 400, "is no JSON"),
        (b"[" * 100_000, 400, "is no JSON"),
        (b"\xff", 400, "is no JSON"),
        ([], 400, "must be a JSON object"),
        ({}, 400, "prompt must be text"),
        ({"prompt": 7}, 400, "prompt must be text"),
        ({"prompt": [1, 300]}, 400, "ids must be from 0 to 255"),
        ({"prompt": "a", "max_tokens": 0}, 400, "max_tokens must be from 1"),
        ({"prompt": "a", "max_tokens": "9"}, 400, "max_tokens is of the wrong type"),
        ({"prompt": "a", "max_tokens": LENGTH}, 400, "together at most"),
        ({"prompt": "a" * LENGTH}, 400, "together at most"),
        ({"prompt": "a", "temperature": -1}, 400, "temperature must be 0 or more"),
        ({"prompt": "a", "temperature": True}, 400, "temperature is of the wrong"),
        (b'{"prompt": "a", "top_p": NaN}', 400, "top_p must be"),
        ({"prompt": "a", "temperature": 10**400}, 400, "temperature is too large"),
        ({"prompt": "a\ud800"}, 400, "no valid text"),
        ({"prompt": "a", "\ud800": 1}, 400, "Unrecognized request argument"),
        ({"prompt": "a", "n": 99}, 400, "n must be from 1 to 16"),
        ({"prompt": ["a"] * 41}, 400, "at most 40"),
        ({"prompt": "a", "logprobs": 2}, 400, "logprobs is not supported"),
        ({"prompt": "a", "stop": [""]}, 400, "stop must be"),
        ({"prompt": "a", "beam": 2}, 400, "Unrecognized request argument"),
        ({"prompt": "a", "model": "gpt"}, 404, "does not exist"),
        (b" " * (protocol.MAX_BODY_BYTES + 1), 413, "the body is over"),
    ],
)
def test_what_is_refused_has_its_status(served, body, status, words):
    got, answer = post(served[1], body)
    assert got == status
    assert words in answer["error"]["message"]
    assert answer["error"]["type"] == "invalid_request_error"


def test_wrong_places_are_refused(served):
    port = served[1]
    asked = {"prompt": "a", "max_tokens": 1}
    assert post(port, asked, "/v1/chat/completions")[0] == 404
    assert post(port, asked, "/v1/nothing")[0] == 404
    assert post(port, asked, "/v1/models")[0] == 405
    assert post(port, asked, **{"Content-Type": "text/plain"})[0] == 415
    # A name of somebody's page that leads here.
    assert post(port, asked, Host="evil.example")[0] == 400
    for name in ("localhost", "127.0.0.1:80", "[::1]:80"):
        assert post(port, asked, Host=name)[0] == 200


def test_a_client_that_goes_away_frees_its_row(served, monkeypatch):
    engine, port = served
    rows = []
    submit = engine.submit
    monkeypatch.setattr(engine, "submit", lambda r: (rows.extend(r), submit(r)))
    for stream in (True, False):
        body = json.dumps({"prompt": "a", "max_tokens": LENGTH - 1, "stream": stream})
        with socket.create_connection(("127.0.0.1", port)) as raw:
            head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
            head += f"application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            raw.sendall((head + body).encode())
            wait_until(lambda: len(rows) == 1)
        wait_until(lambda: rows[0].is_over)
        rows.clear()
    wait_until(lambda: engine.num_rows == 0)


def test_engine_frees_cancelled_rows_and_bounds_its_queue(decoder):
    engine = engine_lib.Engine(decoder, max_rows=4, max_length=LENGTH, max_queue=3)
    heard = []

    def row(index):
        return engine_lib.Row(
            np.array([97]),
            sampling.Sampling(temperature=0),
            Continuation(Bytes(), max_tokens=5),
            lambda text, reason: heard.append((index, reason)) if reason else None,
        )

    rows = [row(index) for index in range(3)]
    rows[1].cancelled = True
    engine.submit(rows)
    with pytest.raises(engine_lib.Full):
        engine.submit([row(3)])
    engine.start()
    wait_until(lambda: len(heard) == 2)
    engine.close()
    assert sorted(heard) == [(0, "length"), (2, "length")]
    assert rows[1].continuation.num_tokens == 0
    with pytest.raises(RuntimeError, match="closed"):
        engine.submit([row(4)])


def test_a_loop_that_fails_tells_everyone(decoder, monkeypatch):
    engine = engine_lib.Engine(decoder, max_rows=2, max_length=LENGTH, max_queue=9)
    heard = []

    def broken(*args, **kwargs):
        raise RuntimeError("boom")

    monkeypatch.setattr(decoder, "run", broken, raising=False)
    row = engine_lib.Row(
        np.array([97]),
        sampling.Sampling(temperature=0),
        Continuation(Bytes(), max_tokens=5),
        lambda text, reason: heard.append(reason),
    )
    engine.submit([row])
    engine.start()
    wait_until(lambda: "error" in heard)
    engine.close()
    with pytest.raises(RuntimeError, match="boom"):
        engine.submit([row])


async def probe(request):
    """The page, with a script that uses it as somebody would."""
    script = """<script>
      document.getElementById("prompt").value = "<b>hello</b>";
      document.getElementById("tokens").value = "20";
      document.getElementById("temperature").value = "0";
      document.getElementById("go").click();
      const look = () => {
        if (running) return setTimeout(look, 20);
        const seen = JSON.stringify({
          old: at("old").textContent, text: at("new").textContent,
          note: at("note").textContent, bold: document.querySelectorAll("b").length,
          model: at("model").textContent });
        fetch("/seen", { method: "POST", body: seen });
      };
      setTimeout(look, 20);
    </script></html>"""
    page = app_lib._PAGE.read_text().replace("</html>", script)
    return HTMLResponse(page, headers=app_lib._HEADERS)


async def note(request):
    """Takes what the script has seen."""
    seen.append(await request.json())
    return HTMLResponse("")


seen = []


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_the_page_streams_text_in_a_browser(served, decoder, tmp_path):
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    flags += ["--remote-debugging-port=0", f"--user-data-dir={tmp_path / 'profile'}"]
    address = f"http://127.0.0.1:{served[1]}/probe"
    with (
        open(tmp_path / "log", "w") as log,
        subprocess.Popen([CHROMIUM, *flags, address], stderr=log) as browser,
    ):
        try:
            wait_until(lambda: seen)
        finally:
            browser.terminate()
    assert "CONSOLE" not in (tmp_path / "log").read_text()
    assert seen == [
        {
            "old": "<b>hello</b>",
            "text": expected(decoder, "<b>hello</b>", 20),
            "note": "",
            "bold": 0,
            "model": "toy",
        }
    ]


@pytest.mark.parametrize(
    ("address", "is_local"),
    [("127.0.0.1", True), ("::1", True), ("0.0.0.0", False), ("::", False)],
)
def test_another_host_than_this_one_is_warned_of(address, is_local, capsys):
    """Asked for by a user, who is told; names of hosts are free then."""
    made, ran = mock.Mock(), mock.Mock()
    limits = {"max_rows": 1, "max_length": 16, "max_queue": 1}
    listening = mock.Mock(getsockname=lambda: (address, 80))
    with (
        mock.patch.object(app_lib, "make", made),
        mock.patch.object(serving, "_run", ran),
        mock.patch.object(engine_lib, "Engine"),
    ):
        serving._serve(mock.MagicMock(), listening, address, limits)
    assert made.call_args.kwargs["only_local"] is is_local
    err = capsys.readouterr().err
    assert ("anyone who reaches it can use the model" in err) is not is_local
    assert ran.call_count == 1


@pytest.mark.slow
def test_the_command_serves_on_loopback_and_ends_on_sigterm(tmp_path, repo_root):
    run = speaking.make_run(tmp_path / "run")
    paths = [repo_root, Path(__file__).parent]
    command = ["-m", "roxxel.main", "--mode=serve", f"--run={run}", "--port=0"]
    with subprocess.Popen(
        [sys.executable, *command, "--trust_config", "--checkpoint=best"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))},
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        line = next(line for line in server.stderr if "http://" in line)
        found = re.search(r"run, step 10, at http://127\.0\.0\.1:(\d+)/", line)
        try:
            status, answer = post(int(found[1]), {"prompt": "a", "max_tokens": 3})
            assert (status, answer["usage"]["completion_tokens"]) == (200, 3)
        finally:
            server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
        assert "Traceback" not in server.stderr.read()
