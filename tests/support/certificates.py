"""An authority of our own and a server's certificate, made with openssl, and the servers' settings
to use it.
"""

from __future__ import annotations

import socket
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tiercel.compose.install import install_missing
from tiercel.compose.server import LOOPBACK

# The only name in the certificate; the address 127.0.0.1 is not.
HOST = "localhost"

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """A server's certificate with its key, and the authority that issued it."""

    ca: Path
    # Files that the server needs, by name.
    files: dict[str, bytes]
    # Whether RabbitMQ demands a certificate of each client too, of the same authority.
    of_clients_too: bool = False

    def for_rabbitmq(self, folder: str, listener: str) -> str:
        """Return the configuration lines for RabbitMQ."""
        verify = "verify_peer" if self.of_clients_too else "verify_none"
        demanded = str(self.of_clients_too).lower()
        return (
            f"listeners.ssl.1 = {listener}\nssl_options.cacertfile = {folder}/ca.pem\n"
            f"ssl_options.certfile = {folder}/server.pem\nssl_options.keyfile = "
            f"{folder}/server.key\nssl_options.verify = {verify}\n"
            f"ssl_options.fail_if_no_peer_cert = {demanded}\n"
        )

    def for_redis(self, folder: str, port: int) -> str:
        """Return the configuration lines for Redis."""
        return (
            f"tls-port {port}\ntls-ca-cert-file {folder}/ca.pem\ntls-cert-file "
            f"{folder}/server.pem\ntls-key-file {folder}/server.key\ntls-auth-clients no\n"
        )


def make_ca(folder: Path) -> Path:
    """Make a new authority."""
    install_missing("openssl")
    folder.mkdir()
    ca = folder / "ca.pem"
    words = ("-subj", "/CN=test authority", "-addext", "keyUsage=critical,keyCertSign")
    _openssl("req", "-x509", *_KEY, *words, "-keyout", folder / "ca.key", "-out", ca)
    return ca


def make_certificate(ca: Path) -> Certificate:
    """Make a certificate for ``HOST``, issued by this authority."""
    key = ca.with_name("server.key")
    certificate = ca.with_name("server.pem")
    words = (
        "-subj",
        "/CN=server",
        "-addext",
        f"subjectAltName=DNS:{HOST}",
        "-addext",
        "basicConstraints=critical,CA:FALSE",
    )
    issuer = ("-CA", ca, "-CAkey", ca.with_name("ca.key"))
    _openssl("req", "-x509", *_KEY, *words, *issuer, "-keyout", key, "-out", certificate)
    return Certificate(
        ca=ca, files={path.name: path.read_bytes() for path in (ca, key, certificate)}
    )


def speaks_tls(port: int) -> bool:
    """Return True if a server on this loopback port answers a TLS handshake.

    A server's listener with TLS may open after the one without.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection((LOOPBACK, port), timeout=5) as plain:
            context.wrap_socket(plain).close()
    except OSError:
        return False
    return True


def with_password(key: Path, locked: Path) -> Path:
    """Write a copy of a key that needs a password to be read."""
    _openssl("pkey", "-in", key, "-aes256", "-passout", "pass:hush", "-out", locked)
    return locked


def _openssl(*words: str | Path) -> None:
    done = subprocess.run(
        ["openssl", *map(str, words)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
