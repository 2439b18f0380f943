"""Certificates that are read late still decide whom a connection trusts."""

import shutil
import ssl
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import certifi
import pytest

from turnwise.gateway.late_certificates import CHANGED, read_certificates_late

CONTEXT_IN_C: Any = ssl.SSLContext.__base__


@pytest.fixture(autouse=True)
def late(monkeypatch):
    for name in CHANGED:  # so that this process is as before when the test ends
        monkeypatch.setattr(ssl.SSLContext, name, getattr(ssl.SSLContext, name))
    read_certificates_late()


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Path:
    """A folder with the key and the certificate of a server called localhost."""
    if (openssl := shutil.which("openssl")) is None:
        pytest.skip("needs openssl to make a certificate")
    folder = tmp_path_factory.mktemp("server")
    asked = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    subprocess.run([openssl, *asked.split(), "-keyout", "key.pem", "-out", "cert.pem"], cwd=folder, check=True)
    return folder


def shake_hands(client: ssl.SSLContext, server: Path, *, name: str = "localhost") -> str | None:
    """The protocol that both agree on; raises what the client raises."""
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(server / "cert.pem", server / "key.pem")
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    caller = client.wrap_bio(back, there, server_hostname=name)
    answerer = theirs.wrap_bio(there, back, server_side=True)
    for _ in range(4):
        for side in (caller, answerer):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    return caller.version()


def already_read(context: Any) -> int:
    return CONTEXT_IN_C.cert_store_stats(context)["x509"]


def test_a_server_is_trusted_by_a_file_that_is_read_at_the_handshake(server):
    client = ssl.create_default_context(cafile=str(server / "cert.pem"))
    assert already_read(client) == 0
    assert shake_hands(client, server) in ("TLSv1.2", "TLSv1.3")
    assert already_read(client) == 1
    assert shake_hands(client, server) in ("TLSv1.2", "TLSv1.3")


def test_a_server_that_no_file_vouches_for_is_refused(server):
    with pytest.raises(ssl.SSLCertVerificationError, match="self-signed certificate"):
        shake_hands(ssl.create_default_context(cafile=certifi.where()), server)
    with pytest.raises(ssl.SSLCertVerificationError, match="not valid for 'elsewhere'"):
        shake_hands(ssl.create_default_context(cafile=str(server / "cert.pem")), server, name="elsewhere")


def test_whoever_asks_what_was_read_gets_the_answer(server):
    context = ssl.create_default_context(cafile=str(server / "cert.pem"))
    assert context.cert_store_stats()["x509"] == 1
    assert len(ssl.create_default_context(cafile=str(server / "cert.pem")).get_ca_certs()) == 1


def test_a_missing_file_is_said_at_once_and_a_broken_one_at_every_connection(server, tmp_path):
    with pytest.raises(FileNotFoundError):
        ssl.create_default_context(cafile=str(tmp_path / "missing.pem"))
    (tmp_path / "broken.pem").write_text("no certificate")
    broken = ssl.create_default_context(cafile=str(tmp_path / "broken.pem"))
    for _ in range(2):
        with pytest.raises(ssl.SSLError, match="NO_CERTIFICATE_OR_CRL_FOUND"):
            shake_hands(broken, server)


def test_certificates_given_as_text_are_read_at_once(server):
    context = ssl.create_default_context(cadata=(server / "cert.pem").read_text())
    assert already_read(context) == 1
