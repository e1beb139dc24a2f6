"""Private database servers for tests: on loopback, in a folder of their own, gone with the test session.

`python -m tests.search.servers` installs them where it can, and says so where it cannot.
"""

import os
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from glob import glob
from importlib.util import find_spec
from pathlib import Path

import pytest

START_SECONDS = 60.0
"""How long a server may take until it answers."""
UNPRIVILEGED = "nobody"
"""Who runs the server where the tests are run by root: both servers refuse to."""


def find_program(name: str) -> str | None:
    """Return where a program of a server is; Debian keeps some outside of the path."""
    places = [shutil.which(name), *glob(f"/usr/lib/postgresql/*/bin/{name}"), shutil.which(name, path="/usr/sbin")]
    return next((place for place in places if place), None)


def is_installed(name: str) -> bool:
    """Whether a program of a server, or a module that talks to it, is here."""
    return find_program(name) is not None or find_spec(name) is not None


def free_port() -> int:
    """Return a port of loopback that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


class Server(ABC):
    """A database server that can be stopped, killed and started again.

    Attributes:
        programs: What it consists of.
        modules: What talks to it.
        packages: What Debian calls them.
    """

    programs: tuple[str, ...]
    modules: tuple[str, ...]
    packages: tuple[str, ...]

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="treadle-server-"))
        self.port = free_port()
        self._as: dict[str, str] = {"user": UNPRIVILEGED} if os.getuid() == 0 else {}
        if self._as:
            shutil.chown(self.folder, UNPRIVILEGED)
        self._databases = 0
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    @contextmanager
    def running(cls) -> Iterator["Server"]:
        """Run one for the block; it is gone afterwards, whatever happens. Skip the test where it is not installed."""
        missing = [name for name in (*cls.programs, *cls.modules) if not is_installed(name)]
        if missing:
            pytest.skip(f"{missing[0]} is not installed; `make servers` says why")
        server = cls()
        try:
            server.create()
            server.start()
            yield server
        finally:
            server.close()

    def program(self, name: str) -> str:
        """Return the path of one of the programs."""
        found = find_program(name)
        assert found is not None
        return found

    @abstractmethod
    def create(self) -> None:
        """Make the folder of an empty server."""

    @abstractmethod
    def command(self) -> list[str]:
        """Return the command line of the server."""

    @abstractmethod
    def query(self, text: str) -> None:
        """Run a statement as the administrator."""

    @abstractmethod
    def database_url(self, name: str) -> str:
        """Return the URL of a database."""

    def call(self, *command: str) -> None:
        """Run a program of the server's as its user."""
        done = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, env=self._environment(), **self._as
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "HOME": str(self.folder), "LC_ALL": "C"}

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        log = (self.folder / "server.log").open("ab")
        self._process = subprocess.Popen(
            self.command(), cwd=self.folder, stdout=log, stderr=log, env=self._environment(), **self._as
        )
        log.close()
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.query("SELECT 1")
                return
            except Exception:
                text = (self.folder / "server.log").read_text(errors="replace")[-3000:]
                assert self._process.poll() is None, text
                assert time.monotonic() < deadline, text
                time.sleep(0.05)

    def stop(self, number: int = signal.SIGQUIT) -> None:
        """End the server: at once, as in a crash, or as another signal asks it to."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(START_SECONDS)
            self._process = None

    def restart(self) -> None:
        """Stop and start it."""
        self.stop()
        self.start()

    def new_database(self) -> str:
        """Make an empty database; return its URL."""
        self._databases += 1
        self.query(f"CREATE DATABASE trials_{self._databases}")
        return self.database_url(f"trials_{self._databases}")

    def close(self) -> None:
        """End the server and remove its folder."""
        self.stop(signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)


class PostgreSql(Server):
    """A cluster of PostgreSQL."""

    programs, modules, packages = ("initdb", "postgres"), ("psycopg",), ("postgresql",)

    def create(self) -> None:
        """Make an empty cluster."""
        self.call(self.program("initdb"), "-D", "data", "-U", "treadle", "--auth=trust", "--no-sync", "-E", "UTF8")

    def command(self) -> list[str]:
        """Return the command line of the server."""
        settings = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "off", "port": self.port}
        return [self.program("postgres"), "-D", "data", *(f"--{name}={value}" for name, value in settings.items())]

    def query(self, text: str) -> None:
        """Run a statement as the administrator."""
        import psycopg

        url = f"postgresql://treadle@127.0.0.1:{self.port}/postgres"
        with psycopg.connect(url, autocommit=True, connect_timeout=5) as connection:
            connection.execute(text.encode())

    def database_url(self, name: str) -> str:
        """Return the URL of a database."""
        return f"postgresql://treadle@127.0.0.1:{self.port}/{name}"


class MariaDb(Server):
    """A server of MariaDB."""

    programs, modules = ("mariadb-install-db", "mariadbd", "my_print_defaults"), ("pymysql",)
    packages = ("mariadb-server-core", "mariadb-client-core")

    def create(self) -> None:
        """Make the folder of an empty server."""
        options = ("--no-defaults", f"--datadir={self.folder / 'data'}", "--skip-test-db")
        self.call(self.program("mariadb-install-db"), *options, "--auth-root-authentication-method=normal")

    def command(self) -> list[str]:
        """Return the command line of the server."""
        return [
            self.program("mariadbd"),
            "--no-defaults",
            f"--datadir={self.folder / 'data'}",
            f"--socket={self.folder / 'socket'}",
            f"--pid-file={self.folder / 'pid'}",
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            "--skip-log-bin",
            "--innodb-flush-log-at-trx-commit=2",
            "--innodb-log-file-size=16M",
        ]

    def query(self, text: str) -> None:
        """Run a statement as the administrator."""
        import pymysql

        with pymysql.connect(host="127.0.0.1", port=self.port, user="root", connect_timeout=5) as connection:
            connection.cursor().execute(text)

    def database_url(self, name: str) -> str:
        """Return the URL of a database."""
        return f"mysql://root@127.0.0.1:{self.port}/{name}"

    def stop(self, number: int = signal.SIGKILL) -> None:
        """End the server: killed, as in a crash, or as another signal asks it to."""
        super().stop(number)


# Installing them ---------------------------------------------------------------------------------------------------

APT = ("-q", "-y", "--no-install-recommends", "-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=10")
ENVIRONMENT = ("env", "DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1")
"""What keeps the packages from asking questions, and from starting servers of their own."""
INSTALL_SECONDS = 300.0


def install() -> str | None:
    """Install the servers that are missing; return in words why that was not possible."""
    lacking = [kind for kind in (PostgreSql, MariaDb) if not all(find_program(name) for name in kind.programs)]
    if not lacking:
        return None
    packages = [name for kind in lacking for name in kind.packages]
    if shutil.which("apt-get") is None:
        return f"there is no apt-get to install {', '.join(packages)}"
    if os.getuid() and shutil.which("sudo") is None:
        return f"only root may install {', '.join(packages)}, and there is no sudo"
    prefix = ["sudo", "-n", *ENVIRONMENT] if os.getuid() else [*ENVIRONMENT]
    for words in (["update"], ["install", *packages]):
        command = [*prefix, "apt-get", words[0], *APT, *words[1:]]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS)
        except subprocess.TimeoutExpired:
            return f"`{shlex.join(command)}` took longer than {INSTALL_SECONDS:.0f} s"
        if done.returncode:
            last, *_ = reversed(done.stderr.strip().splitlines() or ["without a word"])
            return f"`{shlex.join(command)}` failed: {last}"
    return None


if __name__ == "__main__":
    reason = install()
    if reason is not None:
        print(f"Tests of searches on real databases will be skipped: {reason}")
