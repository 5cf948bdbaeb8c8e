"""Measures the release binary beside SQL alone and beside a peer. Started by bench/run, between private servers.

The load comes from wrk, with the documents of operations/ that an app would send. docs/performance.md explains the table.
"""

import argparse
import base64
import hashlib
import hmac
import http.client
import json
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable
from urllib.parse import urlsplit

import tokens
from guard import guard, print_refusals
from round_trips import CountingProxy
from servers import (
    BENCH, BINARY, CONNECTIONS, ENVIRONMENT, FOLDER, MEMBERS, NOTICES_PER_SECOND, PGBENCH, POSTGRES, PREFIX, PRODUCT,
    SECRET, SINGLE_TRANSFERS, THREADS, WARM_UP, WEBHOOK_KEY, Counted, Process, cpu_of, document, endpoints, express,
    free_port, largesse, log, receiver, run, sql, worker, wrk,
)


@dataclass
class Row:
    """One line of the table."""

    name: str
    answers: float
    refused: float
    counted: Counted
    statements: float
    server_cpu: float
    database_cpu: float
    peak_mib: float
    beside: str = ""


def main() -> None:
    arguments = argparse.ArgumentParser(description="Measures Largesse beside SQL alone and beside a peer.")
    arguments.add_argument("--seconds", type=int, default=12, help="how long one measurement takes")
    seconds = arguments.parse_args().seconds
    prepare()
    with largesse("guarded") as guarded, largesse("open", LARGESSE_COOLDOWN_ENABLED="false") as unguarded:
        rows = measure(guarded, unguarded, seconds)
    with receiver() as endpoint:
        told = outbox(endpoint, rows[1], seconds)
        print_table([*rows, told.transfers])
        print(f"\ndeliveries, from a backlog and nothing beside: {told.alone:.0f}/s")
        print(f"deliveries beside {told.beside.answers:.0f} transfers/s: {told.deliveries:.0f}/s")
        print(f"round trips of one transfer, counted on the wire: {round_trips():.2f}; with an endpoint that is told: "
              f"{round_trips(**endpoints(endpoint)):.2f}")
    print_refusals(guard(seconds))
    first, second = start_to_ready()
    print(f"`largesse demo`, start to ready: {first:.0f} ms the first time, {second:.0f} ms after that")
    audit()


def measure(guarded: Process, unguarded: Process, seconds: int) -> list[Row]:
    home, transfer, claim = document("Home"), document("Transfer"), document("ClaimDailyBonus")
    log("every member signs in, as they have in a process that ran for a day")
    sign_in(guarded)
    rows = [row("viewer reads", guarded, "viewer", home, seconds)]
    for name, op, script in [
        ("transfers, random pairs", "transfer", "transfer-function"),
        ("transfers, one recipient", "hot", "hot-function"),
    ]:
        before = pgbench(script, seconds)
        measured = row(name, guarded, op, transfer, seconds)
        limit = (before + pgbench(script, seconds)) / 2
        measured.beside = f"{limit:.0f} SQL alone: {measured.answers / limit:.2f}"
        rows.append(measured)
    steps = pgbench("transfer-steps", seconds)
    rows[1].beside += f"; {steps:.0f} in steps: {rows[1].answers / steps:.2f}"
    with express() as peer:
        before = refusals(peer, seconds)
        measured = row("refusals of one flood", guarded, "flood", claim, seconds)
        express_refusals = (before + refusals(peer, seconds)) / 2
    measured.beside = f"{express_refusals:.0f} Express: {measured.answers / express_refusals:.1f}"
    rows += [measured, row("replays of one key", unguarded, "replay", transfer, seconds)]
    sign_notices(NOTICES_PER_SECOND * (seconds + WARM_UP))
    return [*rows, row("payments told by a provider", guarded, "notice", "", seconds)]


@dataclass
class Told:
    """What an endpoint costs, and what it gets."""

    transfers: Row
    alone: float
    beside: Row
    deliveries: float


def outbox(endpoint: Process, without: Row, seconds: int) -> Told:
    """Transfers that stage their events, and workers in a process of their own that deliver them."""
    settings = {**endpoints(endpoint), "LARGESSE_WORKERS_IN_SERVER": "false"}
    transfer = document("Transfer")
    with largesse("told", **settings) as server:
        sign_in(server)
        transfers = row("transfers, an endpoint is told", server, "transfer", transfer, seconds)
        transfers.beside = f"{without.answers:.0f} without it: {transfers.answers / without.answers:.2f}"
        with worker(settings):
            log("deliveries from a backlog")
            alone = deliveries(seconds, lambda: time.sleep(seconds))
            beside: list[Row] = []
            rate = deliveries(seconds, lambda: beside.append(row("beside", server, "transfer", transfer, seconds)))
    return Told(transfers, alone, beside[0], rate)


def deliveries(seconds: int, meanwhile: Callable[[], None]) -> float:
    """How many events arrive in a second while something else goes on."""
    before, began = delivered(), time.monotonic()
    meanwhile()
    return (delivered() - before) / (time.monotonic() - began)


def delivered() -> int:
    return int(sql(PRODUCT, "SELECT count(*) FROM outbox WHERE delivered_at IS NOT NULL"))


def sign_notices(count: int) -> None:
    """Payments that succeeded, signed as a provider signs them. They are good for five minutes."""
    log(f"{count} payments are signed")
    now = str(int(time.time()))
    with (FOLDER / "notices").open("w") as lines:
        for number in range(count):
            member = f"{PREFIX}{number % MEMBERS + 1}"
            notice = {"reference": f"pay-{number}", "type": "succeeded", "member": member, "amount": "7", "currency": "PTS"}
            body = json.dumps(notice)
            signature = base64.b64encode(hmac.digest(WEBHOOK_KEY, f"{number}.{now}.{body}".encode(), hashlib.sha256))
            lines.write(f"{number}\t{now}\tv1,{signature.decode()}\t{body}\n")


def sign_in(server: Process) -> None:
    """In rounds, since wrk counts seconds and not members."""
    signed_in = 0
    while signed_in < MEMBERS:
        signed_in += wrk(server.port, "signin", "{ viewer { id } }", 5, start=signed_in).accepted


def row(name: str, server: Process, op: str, text: str, seconds: int) -> Row:
    log(name)
    wrk(server.port, op, text, WARM_UP)
    sql(PRODUCT, "CHECKPOINT")  # None falls into the measurement by itself then.
    server.forget_peak()
    statements, server_cpu, database_cpu = statements_so_far(), server.cpu(), database_cpu_so_far()
    # What the warm-up told is told; the other operations make up something new each time.
    counted = wrk(server.port, op, text, seconds, start=NOTICES_PER_SECOND * WARM_UP if op == "notice" else 0)
    refused = op == "flood"
    answers = counted.cooldown if refused else counted.accepted
    return Row(
        name=name,
        answers=answers / counted.seconds,
        refused=(counted.accepted if refused else counted.cooldown) / counted.seconds + counted.other / counted.seconds,
        counted=counted,
        statements=(statements_so_far() - statements) / answers,
        server_cpu=server.cpu() - server_cpu,
        database_cpu=database_cpu_so_far() - database_cpu,
        peak_mib=server.peak_mib(),
    )


def print_table(rows: list[Row]) -> None:
    heads = ["", "answers/s", "others/s", "p50 ms", "p99 ms", "statements", "server CPU s", "database CPU s", "peak MiB"]
    print(f"\n| {' | '.join([*heads, 'beside it, and the ratio'])} |")
    print("|---" + "|---:" * (len(heads) - 1) + "|---|")
    for each in rows:
        numbers = [
            f"{each.answers:.0f}", f"{each.refused:.0f}", f"{each.counted.p50:.1f}", f"{each.counted.p99:.1f}",
            f"{each.statements:.2f}", f"{each.server_cpu:.1f}", f"{each.database_cpu:.1f}", f"{each.peak_mib:.0f}",
        ]
        print(f"| {' | '.join([each.name, *numbers, each.beside])} |")


def pgbench(script: str, seconds: int) -> float:
    log(f"SQL alone: {script}")
    sql(POSTGRES, "CHECKPOINT")
    command = [str(PGBENCH), "-n", "-Mprepared", f"-c{CONNECTIONS}", f"-j{THREADS}", f"-T{seconds}"]
    output = run([*command, "-f", str(BENCH / "limit" / f"{script}.sql"), POSTGRES])
    return float(re.search(r"^tps = ([\d.]+)", output, re.MULTILINE)[1])


def refusals(peer: Process, seconds: int) -> float:
    log("the peer refuses a flood")
    wrk(peer.port, "flood", "", WARM_UP, shape="express")
    counted = wrk(peer.port, "flood", "", seconds, shape="express")
    return counted.cooldown / counted.seconds


# The wire


def round_trips(**settings: str) -> float:
    """Transfers one by one, between wallets that are open, through a proxy that counts."""
    database = urlsplit(PRODUCT)
    proxy = CountingProxy(database.hostname, database.port)
    url = f"postgres://{database.username}@127.0.0.1:{proxy.port}/largesse?sslmode=disable"
    bearers = (FOLDER / "tokens-product").read_text().splitlines()
    settings |= {"LARGESSE_DATABASE_POOL_SIZE": "1", "LARGESSE_COOLDOWN_ENABLED": "false", "LARGESSE_WORKERS_IN_SERVER": "false"}
    with largesse("counted", DATABASE_URL=url, **settings) as server:
        client = http.client.HTTPConnection("127.0.0.1", server.port)
        send_one(client, bearers[0])  # Connects, prepares the statements, makes the member known.
        settle(proxy)
        before = proxy.count
        for _ in range(SINGLE_TRANSFERS):
            send_one(client, bearers[0])
        settle(proxy)
        return (proxy.count - before) / SINGLE_TRANSFERS


def send_one(client: http.client.HTTPConnection, bearer: str) -> None:
    transfer = {"to": f"{PREFIX}2", "amount": "1", "currency": "PTS", "idempotencyKey": secrets.token_hex(8)}
    body = json.dumps({"query": document("Transfer"), "variables": {"input": transfer}})
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {bearer}"}
    client.request("POST", "/graphql", body, headers)
    answer = json.loads(client.getresponse().read())
    assert answer["data"]["transfer"]["entry"], answer


def settle(proxy: CountingProxy) -> None:
    """What a driver does after the answer belongs to the transfer as well: waits until nothing more is counted."""
    seen = -1
    while seen != proxy.count:
        seen = proxy.count
        time.sleep(0.2)


# The demo


def start_to_ready() -> tuple[float, float]:
    """Milliseconds from the start of the demo to its readiness: on a new database file, and on one that is there."""
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        return demo_ready_after(folder), demo_ready_after(folder)


def demo_ready_after(folder: str) -> float:
    port = free_port()
    began = time.monotonic()
    command = [BINARY, "demo", "--listen", f"127.0.0.1:{port}"]
    demo = subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, stdout=subprocess.DEVNULL)
    while not is_ready(port):
        if demo.poll() is not None:
            sys.exit("bench: the demo did not start")
        time.sleep(0.002)
    took = (time.monotonic() - began) * 1000
    demo.send_signal(signal.SIGTERM)
    demo.wait()
    return took


def is_ready(port: int) -> bool:
    client = http.client.HTTPConnection("127.0.0.1", port)
    try:
        client.request("GET", "/readyz")
        return client.getresponse().status == 200
    except OSError:
        return False


# The database


def prepare() -> None:
    log(f"a database with {MEMBERS} members and their wallets")
    sql(POSTGRES, "CREATE EXTENSION pg_stat_statements", "CREATE DATABASE largesse")
    run([BINARY, "migrate", "--database-url", PRODUCT])
    run(["psql", "-Xqv", "ON_ERROR_STOP=1", "-f", str(BENCH / "seed.sql"), PRODUCT])
    run(["psql", "-Xqv", "ON_ERROR_STOP=1", "-f", str(BENCH / "limit" / "schema.sql"), POSTGRES])
    sql(POSTGRES, "VACUUM ANALYZE")
    now = int(time.time())
    lines = [tokens.token(SECRET, f"{PREFIX}{number}", now) for number in range(1, MEMBERS + 1)]
    (FOLDER / "tokens-product").write_text("\n".join(lines) + "\n")
    (FOLDER / "tokens-express").write_text(tokens.token(SECRET, "1", now) + "\n")


def audit() -> None:
    report = run([BINARY, "audit", "--database-url", PRODUCT])
    print(report.strip())


def statements_so_far() -> int:
    """All that the product sent, BEGIN and COMMIT included.

    This script's questions go to the other database, except for the checkpoint. A deferred foreign key's check is counted
    as if it had been sent, though PostgreSQL runs it by itself within COMMIT.
    """
    sent = "query NOT LIKE 'CHECKPOINT%' AND query NOT LIKE 'SELECT % FROM ONLY %'"
    ours = "dbid = (SELECT oid FROM pg_database WHERE datname = 'largesse')"
    return int(sql(POSTGRES, f"SELECT coalesce(sum(calls), 0) FROM pg_stat_statements WHERE {ours} AND {sent}"))


def database_cpu_so_far() -> float:
    """The postmaster's children, those that ended included."""
    postmaster = int((FOLDER / "postgres" / "data" / "postmaster.pid").read_text().split()[0])
    return cpu_of(postmaster, with_ended_children=True) + sum(map(cpu_of, children_of(postmaster)))


def children_of(parent: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


if __name__ == "__main__":
    main()
