"""Endpoints: what is accepted as one, and what is sent to it."""

import pytest

from vllm_slo.errors import SettingsError
from vllm_slo.load import Endpoint


def endpoint(base_url: str, **options) -> Endpoint:
    return Endpoint(**({"base_url": base_url, "model": "m", "vocab_size": 512} | options))


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://h:8000", "http://h:8000/v1/completions"),
        ("http://h:8000/", "http://h:8000/v1/completions"),
        (" http://h:8000/v1/\n", "http://h:8000/v1/completions"),
        ("https://h/team/v1", "https://h/team/v1/completions"),
        ("http://[::1]:8000", "http://[::1]:8000/v1/completions"),
    ],
)
def test_requests_go_below_v1(given, url):
    assert url == endpoint(given).url


def test_chat_has_a_path_of_its_own():
    assert "http://h/v1/chat/completions" == endpoint("http://h", api="chat").url


@pytest.mark.parametrize(
    ("base_url", "options", "message"),
    [
        ("h:8000", {}, "write http://HOST:PORT"),
        ("ftp://h", {}, "write http://HOST:PORT"),
        ("http://", {}, "write http://HOST:PORT"),
        ("http://h:0", {}, "write http://HOST:PORT"),
        ("http://h:99999", {}, "is not a URL"),
        ("http://[::1", {}, "is not a URL"),
        ("http://user:secret@h", {}, "without user"),
        ("http://h?key=1", {}, "without user, query or fragment"),
        ("http://h/a b", {}, "characters no URL has"),
        ("http://h", {"api_key": "secret\n"}, "read from a file with its newline"),
        ("http://h", {"api": "messages"}, '"completions" or "chat", not \'messages\''),
        ("http://h", {"vocab_size": 16}, "vocab_size is 16"),
    ],
)
def test_what_is_no_endpoint_is_refused_and_no_secret_is_shown(base_url, options, message):
    with pytest.raises(SettingsError, match=message) as caught:
        endpoint(base_url, **options)
    assert "secret" not in str(caught.value)


def test_the_api_key_is_sent_and_not_shown():
    one = endpoint("http://h", api_key="abc123")

    assert "Bearer abc123" == one.headers()["Authorization"]
    assert "abc123" not in repr(one)
