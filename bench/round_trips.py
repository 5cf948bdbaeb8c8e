"""A proxy in front of PostgreSQL that counts round trips.

Each is answered with ReadyForQuery once, whatever was asked: a statement, BEGIN, COMMIT, or a driver's ping, which
pg_stat_statements does not see. A pipeline of several statements under one Sync is one.
"""

import socket
import threading


class CountingProxy:
    """Listens on a port of its own until the process ends."""

    def __init__(self, host: str, port: int) -> None:
        self.count = 0
        self._server = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            server = socket.create_connection(self._server)
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._pass_on, args=(client, server, None), daemon=True).start()
            threading.Thread(target=self._pass_on, args=(server, client, Messages()), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, messages: "Messages | None") -> None:
        try:
            while data := source.recv(65536):
                if messages:
                    self.count += messages.ready_in(data)
                sink.sendall(data)
        except OSError:
            pass  # One end is gone; the other learns of it below.
        for end in (source, sink):
            end.close()


class Messages:
    """Cuts a server's bytes into messages: a letter, a length that counts itself, and the rest."""

    def __init__(self) -> None:
        self._rest = b""

    def ready_in(self, data: bytes) -> int:
        self._rest += data
        ready = 0
        while len(self._rest) >= 5:
            end = 1 + int.from_bytes(self._rest[1:5], "big")
            if len(self._rest) < end:
                break
            ready += self._rest[:1] == b"Z"
            self._rest = self._rest[end:]
        return ready
