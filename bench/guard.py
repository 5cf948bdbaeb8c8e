"""What a refusal costs, by where the locks are and by how much of them a process remembers."""

import contextlib
import re
import subprocess
import time
from dataclasses import dataclass
from typing import Iterator

from servers import FOLDER, REDIS, WARM_UP, Process, document, free_port, largesse, log, run, wrk

NODES = 5
# The default, and none: then each attempt asks Redis.
REMEMBER = ("100000", "0")


@dataclass
class Refusing:
    """One line of the table."""

    store: str
    remember: str
    nothing: float
    refusals: float
    commands: float
    p99: float


def guard(seconds: int) -> list[Refusing]:
    """Floods beside `{ __typename }`, which is what the same server answers to the least that one can ask."""
    rows = []
    with nodes() as urls:
        majority = "[" + ",".join(f'"{url}"' for url in urls) + "]"
        for name, servers, settings in [
            ("one Redis", [REDIS], {}),
            ("a majority of five", urls, {"REDIS_URL": None, "LARGESSE_REDIS_MAJORITY_URLS": majority}),
        ]:
            for remember in REMEMBER:
                log(f"refusals: {name}, {remember} locks remembered")
                with largesse("refusing", LARGESSE_COOLDOWN_REMEMBER=remember, **settings) as server:
                    rows.append(refusing(name, remember, server, servers, seconds))
    return rows


def refusing(name: str, remember: str, server: Process, redis: list[str], seconds: int) -> Refusing:
    claim = document("ClaimDailyBonus")
    wrk(server.port, "flood", claim, WARM_UP)
    before = answers_to_nothing(server, seconds)
    commands = sum(map(commands_so_far, redis))
    counted = wrk(server.port, "flood", claim, seconds)
    commands = sum(map(commands_so_far, redis)) - commands
    nothing = (before + answers_to_nothing(server, seconds)) / 2
    return Refusing(name, remember, nothing, counted.cooldown / counted.seconds, commands / counted.cooldown, counted.p99)


def answers_to_nothing(server: Process, seconds: int) -> float:
    """By the member whose flood is refused, with the same token."""
    counted = wrk(server.port, "nothing", "{ __typename }", seconds)
    return counted.accepted / counted.seconds


def commands_so_far(url: str) -> int:
    """What clients asked. What a script runs is part of the question."""
    said = run(["redis-cli", "-u", url, "INFO", "commandstats"])
    counted = dict(re.findall(r"^cmdstat_([^:]+):calls=(\d+)", said, re.MULTILINE))
    return sum(int(calls) for name, calls in counted.items() if name in ("evalsha", "eval"))


@contextlib.contextmanager
def nodes() -> Iterator[list[str]]:
    """Servers that know nothing of each other."""
    ports = [free_port() for _ in range(NODES)]
    options = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    started = [
        subprocess.Popen(["redis-server", "--port", str(port), *options], cwd=FOLDER, stdout=subprocess.DEVNULL)
        for port in ports
    ]
    try:
        for port in ports:
            while subprocess.run(["redis-cli", "-p", str(port), "PING"], capture_output=True, check=False).returncode:
                time.sleep(0.02)
        yield [f"redis://127.0.0.1:{port}" for port in ports]
    finally:
        for server in started:
            server.terminate()
            server.wait()


def print_refusals(rows: list[Refusing]) -> None:
    print("\n| locks in | remembered | refusals/s | p99 ms | `{ __typename }`/s | ratio | Redis commands a refusal |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for each in rows:
        numbers = [
            f"{each.refusals:.0f}", f"{each.p99:.1f}", f"{each.nothing:.0f}", f"{each.refusals / each.nothing:.2f}",
            f"{each.commands:.4f}",
        ]
        print(f"| {' | '.join([each.store, each.remember, *numbers])} |")
