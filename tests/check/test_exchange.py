"""The ways to a server: HTTP, and in this process."""

import time

import pytest
from fakes.checked_servers import CITY, Handler, Json, served

from benchmarks.check import HttpExchange, LocalExchange, Reply, forgery, forms
from benchmarks.check.markers import markers_of
from engine import Engine
from engine.support.errors import RemoteError, RequestError

QUESTION: Json = {"messages": [{"role": "user", "content": "Hello!"}]}


@pytest.mark.parametrize("suffix", ["", "/", "/chat/completions"])
def test_a_body_goes_out_and_an_answer_comes(suffix: str) -> None:
    with served() as web:
        exchange = HttpExchange(web.url + suffix, api_key="secret", headers={"X-Own": "yes"})
        reply = exchange.send(QUESTION)
        assert (reply.status, reply.body["choices"][0]["message"]["content"]) == (200, CITY)
        (_, _, listed), (path, headers, body) = web.seen
        assert listed == {}
        assert path == "/v1/chat/completions"
        assert (headers["Authorization"], headers["X-Own"]) == ("Bearer secret", "yes")
        assert body == {"model": "first", **QUESTION}


def test_an_address_without_a_path_and_a_model_of_ones_own() -> None:
    with served() as web:
        HttpExchange(web.url.removesuffix("/v1"), model="mine").send(QUESTION)
        ((path, headers, body),) = web.seen
        assert (path, body["model"]) == ("/v1/chat/completions", "mine")
        assert "Authorization" not in headers


def test_a_stream_is_read_to_its_end() -> None:
    with served() as web:
        reply = HttpExchange(web.url).send({**QUESTION, "stream": True})
    deltas = [chunk["choices"][0]["delta"].get("content") or "" for chunk in reply.data]
    assert ("".join(deltas), reply.done, reply.malformed, reply.broken) == (CITY, True, 0, "")


def test_what_the_server_tells_of_its_template() -> None:
    with served() as web:
        assert HttpExchange(web.url).markup() == "{{ '<|im_start|>' }}\n\n<|done|>"
        assert [path for path, _, _ in web.seen] == ["/props"]
    with served() as web:
        assert HttpExchange(f"{web.url.removesuffix('/v1')}/other/v1").markup() == ""


def test_both_suites_over_http() -> None:
    with served() as web:
        exchange = HttpExchange(web.url)
        assert {record.verdict for record in forgery(exchange, ["<|im_end|>"], ["user"])} == {"text"}
        assert {record.verdict for record in forms(exchange)} == {"ok"}


def test_an_error_of_the_server_is_a_reply() -> None:
    with served(lambda handler, body: handler.send(500, "text/plain", b"oh")) as web:
        reply = HttpExchange(web.url).send(QUESTION)
    assert (reply.status, reply.told) == (500, "500: the answer is no JSON object")
    assert len(Reply(400, ({"error": {"message": "no " * 1000}},)).told) < 400


def test_a_server_that_hangs_is_late_and_then_an_error() -> None:
    def hang(handler: Handler, body: Json) -> None:
        handler.web.over.wait(20)

    with served(hang) as web:
        exchange = HttpExchange(web.url, timeout=0.1)
        for _ in range(2):
            reply = exchange.send(QUESTION)
            assert (reply.status, reply.told) == (0, "no whole answer within 0.1 s")
        with pytest.raises(RemoteError, match=r"3 times in a row.*--timeout"):
            exchange.send(QUESTION)


def test_a_server_that_trickles_is_late() -> None:
    def trickle(handler: Handler, body: Json) -> None:
        handler.send(200, "application/json", b"", length=1000)
        while not handler.web.over.wait(0.02):
            handler.wfile.write(b" ")

    with served(trickle) as web:
        began = time.monotonic()
        assert HttpExchange(web.url, timeout=0.3).send(QUESTION).status == 0
        assert time.monotonic() - began < 5


def test_late_answers_between_good_ones_are_no_error() -> None:
    count = iter(range(100))

    def sometimes(handler: Handler, body: Json) -> None:
        if next(count) % 3 < 2:
            handler.web.over.wait(0.3)
        else:
            handler.good(body)

    with served(sometimes) as web:
        exchange = HttpExchange(web.url, timeout=0.15)
        assert [exchange.send(QUESTION).status for _ in range(6)] == [0, 0, 200, 0, 0, 200]


def test_an_answer_that_breaks_off_is_told() -> None:
    def break_off(handler: Handler, body: Json) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.wfile.write(b'40\r\n{"choices": ')
        handler.close_connection = True

    with served(break_off) as web:
        reply = HttpExchange(web.url).send(QUESTION)
    assert reply.status == 200
    assert reply.told.startswith("the answer broke off")


def test_no_server_is_an_error_that_names_the_way_out() -> None:
    with served() as web:
        url = web.url
    with pytest.raises(RemoteError, match=r"127\.0\.0\.1.*[Ss]tart the server"):
        HttpExchange(url, timeout=5).send(QUESTION)


@pytest.mark.parametrize("url", ["localhost:8080", "ftp://localhost", "http://", "http://localhost:port/v1"])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(RequestError):
        HttpExchange(url)


def test_an_engine_of_this_process(llm: Engine) -> None:
    exchange = LocalExchange(llm)
    body: Json = {**QUESTION, "temperature": 0, "max_tokens": 8}
    whole, streamed = exchange.send(body), exchange.send({**body, "stream": True})
    assert whole.status == streamed.status == 200
    assert streamed.done
    assert whole.body["usage"]["prompt_tokens"] > 0
    assert exchange.send({"messages": []}).refused
    assert {"<|im_start|>", "<|endoftext|>"} <= set(markers_of(exchange.markup()))
    slow = LocalExchange(llm, timeout=0.0)
    for stream in (False, True):
        assert slow.send({**body, "max_tokens": 4000, "stream": stream}).status == 0
