"""With an authority in its URL, a ledger is reached by TLS and its server's certificate is checked."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from amends.errors import LedgerUnavailable
from amends.stores.mysql.store import MysqlStore
from amends.testing.conformance.ledger import Ledger
from tests.servers.fixtures import unavailable
from tests.servers.found import Unavailable
from tests.servers.mariadb import MariadbServer


def openssl(folder: Path, *words: str) -> None:
    program = shutil.which("openssl")
    if program is None:
        unavailable(Unavailable("no openssl to make certificates with"))
    subprocess.run([program, *words], cwd=folder, check=True, capture_output=True, timeout=60)


def signed(folder: Path, name: str, host: str) -> None:
    """An authority and a certificate that it signed for this host."""
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    openssl(folder, "req", "-x509", *key, "-keyout", f"{name}-ca.key", "-out", f"{name}-ca.pem", "-subj", f"/CN={name}")
    openssl(
        folder, "req", "-x509", *key, "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={host}",
        "-CA", f"{name}-ca.pem", "-CAkey", f"{name}-ca.key", "-addext", f"subjectAltName=DNS:{host}",
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Certificates that the server's own user may read: pytest's folders are ours alone."""
    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        for name in ("ours", "other"):
            signed(place, name, "localhost")
        place.chmod(0o755)
        for file in place.iterdir():
            file.chmod(0o644)
        yield place


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[MariadbServer]:
    settings = {"ssl_cert": str(folder / "ours.pem"), "ssl_key": str(folder / "ours.key")}
    try:
        made = MariadbServer(tcp=True, settings=settings).start()
    except Unavailable as refusal:
        unavailable(refusal)
    yield made
    made.close()


def test_a_server_that_the_authority_knows_is_used(server: MariadbServer, folder: Path) -> None:
    url = server.create_database().replace("127.0.0.1", "localhost")
    store = MysqlStore(f"{url}?ssl_ca={folder}/ours-ca.pem")
    assert Ledger(store).do(Ledger(store).run()).state == "succeeded"
    link = store._pool.take()
    assert link.ask("show session status like 'ssl_cipher'")[0][1]
    store._pool.give(link, keep=True)
    store.close()


@pytest.mark.parametrize("authority, host", [("other-ca.pem", "localhost"), ("ours-ca.pem", "127.0.0.1")])
def test_a_server_that_it_does_not_know_or_that_has_another_name_is_refused(
    server: MariadbServer, folder: Path, authority: str, host: str
) -> None:
    url = server.create_database().replace("127.0.0.1", host)
    store = MysqlStore(f"{url}?ssl_ca={folder}/{authority}")
    with pytest.raises(LedgerUnavailable, match="cannot be reached") as refused:
        store.open(create=True)
    assert "ssl_" in refused.value.hint
    store.close()


def test_the_name_need_not_be_checked_where_that_was_said(server: MariadbServer, folder: Path) -> None:
    store = MysqlStore(f"{server.create_database()}?ssl_ca={folder}/ours-ca.pem&ssl_verify_identity=false")
    assert store.open(create=True)
    store.close()
