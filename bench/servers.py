"""What the measurements share: the servers that they start, and the load that they send."""

import base64
import contextlib
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Iterator
from urllib.parse import urlsplit

BENCH = Path(__file__).resolve().parent
OPERATIONS = (BENCH.parent / "operations" / "largesse.graphql").read_text()
BINARY = os.environ["LARGESSE_BIN"]
FOLDER = Path(os.environ["LARGESSE_TEST_DIR"])
PGBENCH = Path(os.environ["LARGESSE_TEST_PG_BIN"]) / "pgbench"
POSTGRES = os.environ["LARGESSE_TEST_POSTGRES_URL"]
REDIS = os.environ["LARGESSE_TEST_REDIS_URL"]
# What the processes here inherit: a setting of the caller's shell must not change what is measured.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("LARGESSE_")}

# SQL alone and the peer work in the database that is there, the product in one of its own.
PRODUCT = POSTGRES.rsplit("/", 1)[0] + "/largesse"
SECRET = secrets.token_hex(32)
MEMBERS, PREFIX = 100_000, "member-"
CONNECTIONS, THREADS = 32, 2
WARM_UP = 2
SINGLE_TRANSFERS = 200
# Whose webhooks the server believes, and under which secret it sends its own.
WEBHOOK_KEY = secrets.token_bytes(32)
WEBHOOK_SECRET = "whsec_" + base64.b64encode(WEBHOOK_KEY).decode()
# More than any machine takes in while it is measured, so that none is told twice.
NOTICES_PER_SECOND = 4000


@dataclass
class Counted:
    """What wrk saw."""

    accepted: int
    cooldown: int
    other: int
    seconds: float
    p50: float
    p99: float


def wrk(port: int, op: str, text: str, seconds: int, shape: str = "product", start: int = 0) -> Counted:
    environment = {**ENVIRONMENT, "OP": op, "SHAPE": shape, "DOCUMENT": text, "PREFIX": PREFIX, "START": str(start)}
    environment["TOKENS"], environment["NOTICES"] = str(FOLDER / f"tokens-{shape}"), str(FOLDER / "notices")
    command = ["wrk", f"-c{CONNECTIONS}", f"-t{THREADS}", f"-d{seconds}", "-s", str(BENCH / "load.lua")]
    output = run([*command, f"http://127.0.0.1:{port}"], environment)
    for surprise in re.findall(r"^other: .*|.*Socket errors.*", output, re.MULTILINE):
        log(surprise)
    accepted, cooldown, other, *times = re.search(r"^counted (.*)", output, re.MULTILINE)[1].split()
    return Counted(int(accepted), int(cooldown), int(other), *map(float, times))


def document(operation: str) -> str:
    """An operation with the fragments that it spreads, as a client's build tool would send it."""
    definition = re.compile(r"^(?:query|mutation|fragment) (\w+).*?^}", re.MULTILINE | re.DOTALL)
    definitions = {found[1]: found[0] for found in definition.finditer(OPERATIONS)}
    wanted, found = [operation], []
    while wanted:
        name = wanted.pop()
        if name not in found:
            found.append(name)
            wanted += re.findall(r"\.\.\.(\w+)", definitions[name])
    return "\n".join(definitions[name] for name in found)


# Servers


class Process:
    """A server that this script started."""

    def __init__(self, started: subprocess.Popen, port: int) -> None:
        self.pid, self.port = started.pid, port

    def cpu(self) -> float:
        return cpu_of(self.pid)

    def forget_peak(self) -> None:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def peak_mib(self) -> float:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024


@contextlib.contextmanager
def running(name: str, command: list[str], port: Callable[[str], int | None], **settings: str) -> Iterator[Process]:
    """Starts a server, waits until its log or its port says that it is there, and stops it in the end."""
    path = FOLDER / f"{name}.log"
    with path.open("w") as output:
        started = subprocess.Popen(command, env={**ENVIRONMENT, **settings}, stdout=output, stderr=output, cwd=FOLDER)
    try:
        while (found := port(path.read_text())) is None:
            if started.poll() is not None:
                sys.exit(f"bench: {name} did not start:\n{path.read_text()}")
            time.sleep(0.02)
        yield Process(started, found)
    finally:
        started.send_signal(signal.SIGTERM)
        started.wait()


def largesse(name: str, **settings: str | None) -> contextlib.AbstractContextManager[Process]:
    settings = {
        "DATABASE_URL": PRODUCT,
        "REDIS_URL": REDIS,
        "LARGESSE_TOKEN_SECRET": SECRET,
        "LARGESSE_DAILY_BONUS_AMOUNTS": "[10, 15, 20]",
        "LARGESSE_LOG_FORMAT": "json",
        "LARGESSE_FUNDING_PROVIDERS": f'[{{name="bench",secrets=["{WEBHOOK_SECRET}"]}}]',
        **settings,
    }
    settings = {variable: value for variable, value in settings.items() if value is not None}
    return running(name, [BINARY, "serve", "--listen", "127.0.0.1:0"], announced_port, **settings)


def endpoints(endpoint: "Process") -> dict[str, str]:
    url = f"http://127.0.0.1:{endpoint.port}/"
    return {
        "LARGESSE_WEBHOOKS_ENDPOINTS": f'[{{name="bench",url="{url}",secrets=["{WEBHOOK_SECRET}"]}}]',
        "LARGESSE_WEBHOOKS_ALLOW_PRIVATE_ADDRESSES": "true",
    }


def receiver() -> contextlib.AbstractContextManager[Process]:
    printed = lambda output: int(found[1]) if (found := re.search(r"port (\d+)", output)) else None
    return running("receiver", ["node", str(BENCH / "receiver.mjs")], printed)


def worker(settings: dict[str, str]) -> contextlib.AbstractContextManager[Process]:
    settings = {"DATABASE_URL": PRODUCT, "LARGESSE_LOG_FORMAT": "json", **settings}
    return running("worker", [BINARY, "work"], lambda output: 0 if '"working"' in output else None, **settings)


def announced_port(output: str) -> int | None:
    announced = re.search(r'"address":"127\.0\.0\.1:(\d+)"', output)
    return int(announced[1]) if announced else None


def express() -> contextlib.AbstractContextManager[Process]:
    port = free_port()
    settings = {"PGPORT": str(urlsplit(POSTGRES).port), "REDIS_URL": REDIS, "JWT_SECRET": SECRET}
    return running(
        "express",
        ["node", str(BENCH / "peers" / "seed-express.mjs"), str(port)],
        lambda _: port if accepts(port) else None,
        **settings,
    )


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def cpu_of(pid: int, with_ended_children: bool = False) -> float:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return 0  # It ended between the listing and the reading.
    # utime, stime, cutime and cstime, counted from the state, which follows the name in parentheses.
    times = stat.rpartition(")")[2].split()[11:15]
    return sum(map(int, times[: 4 if with_ended_children else 2])) / os.sysconf("SC_CLK_TCK")


def sql(url: str, *statements: str) -> str:
    commands = [part for statement in statements for part in ("-c", statement)]
    return run(["psql", "-XAtqv", "ON_ERROR_STOP=1", *commands, url]).strip()


def run(command: list[str], environment: dict[str, str] = ENVIRONMENT) -> str:
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run(command, env=environment, cwd=FOLDER, check=False, **output)
    if done.returncode != 0:
        sys.exit(f"bench: {command[0]} failed:\n{done.stdout}")
    return done.stdout


def log(text: str) -> None:
    print(f"… {text}", file=sys.stderr, flush=True)
