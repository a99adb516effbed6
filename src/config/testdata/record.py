#!/usr/bin/env python3
"""Records how a real Redis reads its directives, for the tests of `config`.

    redis-server --port 17321 &
    python3 record.py 17321

writes beside itself `defaults.tsv` (every pair of CONFIG GET *, the port and directory of the run aside) and
`set.tsv` (directive, value given to CONFIG SET, then what CONFIG GET reads back after `=`, or the error after `-`).
"""
import pathlib
import socket
import sys

HERE = pathlib.Path(__file__).parent
# They depend on the run, end the connection, or (as `tls-*`) bring a build without TLS down.
SKIP = {"port", "bind", "dir", "dbfilename", "requirepass", "locale-collate", "maxclients"}
# By what the error for `zzz` says of the kind.
KINDS = {
    "yes": ["", "1", "NO", "Yes"],
    "integer": ["", "-1", "0", "1", "5", "1001", "65536", "2147483648", "4294967296", "9223372036854775807",
                "9223372036854775808", "1k", "007", "+5", " 5"],
    "memory": ["", "-1", "0", "1", "1048576", "9223372036854775807", "9223372036854775808", "18446744073709551616",
               "1k", "1KB", "64mb", "1g", "1tb", "1.5", " 5", "5%"],
}
MORE = {
    "save": ["3600 1", "3600 1 300 100", "0 1", "1 0", "-1 5", "a b", "3600 1 60", " "],
    "client-output-buffer-limit": ["normal 0 0 0", "normal 1gb 64mb 60 pubsub 4 5 6", "replica 7 8 9", "slave 1 2 3",
                                   "normal 1", "xx 1 2 3", "master 1 2 3", "normal a 2 3", "normal 0 0 -3",
                                   "normal 0 0 x", "Pubsub 5 5 5", "pubsub 1 1 1 pubsub 2 2 2"],
    "notify-keyspace-events": ["A", "AKE", "KEA", "Elg", "g$lshzxetdmn", "KEg$lshzxetd", "nmx", "q", "AKEq", "An",
                               "Am", "KEAmn", "K", "E", "t", "d", "AKEd", "K E"],
    "latency-tracking-info-percentiles": ["50", "0 100", "50 99.999", "50.50", "100.1", "50 50", "0.1234567", "1e1",
                                          "99.9 x", "0.00001", "33.3333333"],
    "oom-score-adj-values": ["1 2 3", "0 0 0", "3 2 1", "2001 1 1", "-2000 0 2000", "1 2", "x 1 1", "1 2 3 4"],
    "proc-title-template": ["{title}x", "{title} {port}", "{foo}", "{config-file}", "{tls-port}", "{unixsocket}",
                            "{listen-addr}", "{server-mode}", "{title", "title}", "{}", "{{title}}", "x"],
    "cluster-announce-hostname": ["a.b-c", "a_b", "A1", "x" * 256, "x" * 255],
    "cluster-announce-human-nodename": ["a.b-c", "a_b", "x" * 256],
    "shutdown-on-sigterm": ["save now", "now force", "force now", "save nosave", "save x", "NOW", "default save",
                            "save save", "nosave now force"],
    "shutdown-on-sigint": ["save nosave"],
    "maxmemory-clients": ["100%", "0%", "5mb", "-5%", "%"],
}


class Client:
    def __init__(self, port):
        self.file = socket.create_connection(("127.0.0.1", port)).makefile("rwb")

    def __call__(self, *args):
        out = b"*%d\r\n" % len(args)
        for arg in args:
            arg = arg.encode()
            out += b"$%d\r\n%s\r\n" % (len(arg), arg)
        self.file.write(out)
        self.file.flush()
        return self.read()

    def read(self):
        line = self.file.readline()[:-2].decode()
        if line[0] == "$":
            return self.file.read(int(line[1:]) + 2)[:-2].decode()
        if line[0] == "*":
            return [self.read() for _ in range(int(line[1:]))]
        return line


def main():
    call = Client(int(sys.argv[1]))
    pairs = call("CONFIG", "GET", "*")
    defaults = dict(zip(pairs[::2], pairs[1::2]))
    with open(HERE / "defaults.tsv", "w") as out:
        for name in sorted(defaults):
            if name not in ("port", "dir"):
                out.write(f"{name}\t{defaults[name]}\n")
    with open(HERE / "set.tsv", "w") as out:
        for name in sorted(defaults):
            if name in SKIP or name.startswith("tls-"):
                continue
            old = call("CONFIG", "GET", name)[1]
            values = list(MORE.get(name, []))
            reply = attempt(call, out, name, "zzz", old)
            if "one of the following: " in reply:
                values += [word.upper() for word in reply.split("following: ")[1].split(", ")]
            for word, more in KINDS.items():
                if word in reply:
                    values += more
            for value in values:
                attempt(call, out, name, value, old)


def attempt(call, out, name, value, old):
    reply = call("CONFIG", "SET", name, value)
    if reply == "+OK":
        out.write(f"{name}\t{value}\t={call('CONFIG', 'GET', name)[1]}\n")
        call("CONFIG", "SET", name, old)
    else:
        reply = reply.removeprefix(f"-ERR CONFIG SET failed (possibly related to argument '{name}') - ")
        out.write(f"{name}\t{value}\t-{reply}\n")
    return reply


main()
