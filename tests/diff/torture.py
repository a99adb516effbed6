#!/usr/bin/env python3
"""Model test at the level of commands: Tarn under pressure, with Redis 8.2 as the model in memory.

usage: torture.py --tarn BINARY --redis BINARY [--seed N] [--rounds N | --seconds N] [--batch N] [--epoch N]
                  [--events WORD,WORD] [--groups GROUP,GROUP] [--skip CMD,CMD] [--keep DIR]

Both get the same random commands of all types (the generator is difffuzz.py's, with bigger data: collections of several
thousand elements, members and values of up to 5000 bytes, strings of several chunks). Tarn has a few kilobytes of memory for
the table of a shard, so that every object is at times dirty, in flight, complete, partial and gone to disk. A round is a batch
of commands whose replies are compared, then an event, then (after a restart always) a look at the whole key space.

| event | what |
|---|---|
| none, idle | nothing, a pause |
| save, bgsave | a flush that is waited for; one that goes on while the next batch comes |
| hot | the same few elements are written while one flush follows the other, then a flush, SIGKILL and a start: nothing is left to the log
| read | other data is read, so that everything leaves memory |
| expire | (if asked for) keys and fields of hashes expire that no sweep comes to; commands on them, of which only the outcome counts; then the sweeps
| restart, kill | SIGTERM or SIGKILL between two commands, and a start |
| killflush | SIGKILL at a random moment of a flush |
| killload | SIGKILL while commands arrive: each goes in an EXEC that counts, and the model follows up to the count found after the
|          | start, which must be that of the last acknowledged command at least |

Beside some of the batches a second client reads, or flushes over and over. A look takes each key by several ways, in random order, as each finds the object in the state the one before has left: sizes, full
reads, cursors, indexes and ranks, single members, windows, times. Sizes, DBSIZE and what scans find must be the model's.

Epochs of --epoch rounds begin, most of them, without keys and choose anew: encode-version 0 or 1 by type, RESP2 or RESP3, the sizes.
With encode-version 1 HSET and SADD answer by the number of pairs and members they got; these replies are not compared.

Exit status 0 when nothing differs, 1 at the first difference (with what named the key before), 3 when Tarn ended by itself.
Choices are deterministic by --seed, but the moments of kills are not, nor what SPOP takes.
"""
import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import difffuzz  # noqa: E402
import resp  # noqa: E402
from difffuzz import K, compare  # noqa: E402
from resp import Error, encode, rkey, show, show_cmd  # noqa: E402

GROUPS = "string,bitmap,hyperloglog,hash,list,set,sorted_set,geo,stream,generic"
EVENTS = {"none": 4, "idle": 1, "save": 2, "bgsave": 3, "read": 3, "restart": 1, "kill": 2, "killflush": 2, "killload": 2, "hot": 3,
          "expire": 2}
STARTS = ("restart", "kill", "killflush", "killload", "hot")
FILLER = 600  # keys of other data, 20 KB each, in a database of its own
COUNTER = K(b"counter")
SKEW_MS = 20000  # a command reaches the model after the restart, where Tarn was killed


class Differs(Exception):
    """What the two servers disagree in."""


class BigGen(difffuzz.Gen):
    """Data of more sizes: big keys `h:B0` beside the small ones, members that are many or long."""

    def __init__(self, seed, opt):
        super().__init__(seed, opt)
        for t in "hltzxgy":
            self.keys[t] += [K(b"%s:B%d" % (t.encode(), i)) for i in range(2)]
        for t in "shltzx":  # longer than what a record has room for
            self.keys[t].append(K(b"%s:" % t.encode() + b"k" * 1500))
        self.keys["S"] = [K(b"S:%d" % i) for i in range(3)]
        self.keys["T"] = [K(b"T:%d" % i) for i in range(3)]
        self.keys["X"] = [K(b"X:%d" % i) for i in range(3)]
        self.vals += [b"v" * 700, b"w" * 1500, b"u" * 5000]

    space, run = 4000, 700  # numbers of members, and how many one command may name

    def many(self):
        return b"m%05d" % self.i(self.space)

    def mem(self):
        r = self.rnd()
        if r < 0.5:
            return super().mem()
        if r < 0.88:
            return self.many()
        n = self.i(40)  # few, so that they are met again
        return b"long%02d" % n + b"x" * (n * (20 if r < 0.96 else 125))

    def idx(self):
        return super().idx() if self.rnd() < 0.6 else b"%d" % (self.i(2 * self.space) - self.space)

    def score(self):
        return super().score() if self.rnd() < 0.5 else b"%d" % self.i(1000)

    def lex(self):
        return super().lex() if self.rnd() < 0.5 else self.c([b"[", b"("]) + self.many()

    def big(self, t):
        return self.keys[t][self.NKEYS + self.i(2)]

    entry = 0  # the last entry of the big streams, over all epochs

    def entries(self, n):
        """Names of some of the latest entries, neighbours or any."""
        lowest = max(0, BigGen.entry - 3000)
        base = lowest + self.i(BigGen.entry - lowest + 1)
        return [b"%d-1" % (base + i if n % 2 else lowest + self.i(BigGen.entry - lowest + 1)) for i in range(n)]

    def one_of_many(self):
        return K(b"n:%04d" % self.i(1500))


def extra_rows():
    """Rows for big data, in the form of difffuzz.table."""
    rows = []

    def add(name, weight, fn, norm="exact"):
        rows.append((name, "big", weight, fn, norm, False, True))

    def run(g, part=1.0):  # neighbours, or any
        n = 1 + g.i(int(g.run * part))
        base = g.i(g.space)
        return [b"m%05d" % ((base + i) % g.space) for i in range(n)] if g.p(0.5) else [g.many() for _ in range(n)]

    add("HSET", 5, lambda g: [g.big("h")] + [x for m in run(g) for x in (m, g.val())])
    add("HDEL", 1, lambda g: [g.big("h")] + run(g, 0.5))
    add("HMGET", 1, lambda g: [g.big("h")] + run(g, 0.05))
    add("HEXPIRE", 1, lambda g: (lambda m: [g.big("h"), g.ttl_s(), b"FIELDS", b"%d" % len(m), *m])(run(g, 0.1)), "ttl")
    add("SADD", 5, lambda g: [g.big("t")] + run(g))
    add("SREM", 1, lambda g: [g.big("t")] + run(g, 0.5))
    add("ZADD", 5, lambda g: [g.big("z")] + [x for m in run(g) for x in (g.score() if g.p(0.1) else b"%d" % g.i(300), m)])
    add("ZREM", 1, lambda g: [g.big("z")] + run(g, 0.5))
    add("ZADD", 2, lambda g: [g.big("y")] + [x for m in run(g) for x in (b"0", m)])
    add("RPUSH", 4, lambda g: [g.big("l")] + run(g))
    add("LPUSH", 4, lambda g: [g.big("l")] + run(g))
    add("LPOP", 1, lambda g: [g.big("l"), b"%d" % g.i(300)])
    add("RPOP", 1, lambda g: [g.big("l"), b"%d" % g.i(300)])
    add("LREM", 1, lambda g: [g.big("l"), g.small(-2, 2), g.many()])
    add("LTRIM", 0.3, lambda g: [g.big("l"), b"%d" % g.i(g.run), b"%d" % -(1 + g.i(g.run))])
    add("ZREMRANGEBYRANK", 0.5, lambda g: (lambda at: [g.big("z"), b"%d" % at, b"%d" % (at + g.i(g.run))])(g.i(g.space)))
    add("ZPOPMIN", 0.5, lambda g: [g.big("z"), b"%d" % g.i(200)])
    add("ZPOPMAX", 0.5, lambda g: [g.big("z"), b"%d" % g.i(200)])
    add("GEOADD", 1, lambda g: [g.big("g")] + [x for m in run(g, 0.3) for x in (b"%d.5" % (g.i(300) - 150), b"%d.25" % (g.i(160) - 80), m)])
    at = lambda g: b"%d" % g.c([g.i(400), g.i(70000), 65536 - g.i(20), 16384 * g.i(20), g.i(300000)])  # noqa: E731
    text = lambda g: g.c([b"%d" % g.i(10**9), b"ab" * g.i(40), b"c" * g.i(5000), b"d%d" % g.i(100) * g.i(20000)])  # noqa: E731
    key = lambda g: g.c(g.keys["S"])  # noqa: E731
    add("SETRANGE", 2, lambda g: [key(g), at(g), text(g)])
    add("APPEND", 2, lambda g: [key(g), text(g)])
    add("SET", 1, lambda g: [key(g), text(g)])
    add("GETRANGE", 2, lambda g: [key(g), at(g), at(g)])
    add("SETBIT", 2, lambda g: [key(g), b"%d" % g.i(3000000), g.c([b"0", b"1", b"1"])])
    add("GETBIT", 1, lambda g: [key(g), b"%d" % g.i(3000000)])
    add("BITCOUNT", 0.5, lambda g: [key(g), at(g), at(g)])
    add("BITFIELD", 1, lambda g: [key(g), b"SET", b"u32", b"%d" % g.i(3000000), b"%d" % g.i(10**9), b"GET", b"i40", at(g)])
    add("BITOP", 0.3, lambda g: [g.c([b"AND", b"OR", b"XOR"]), key(g), key(g), key(g)])
    add("RENAME", 0.3, lambda g: [key(g), key(g)])
    add("COPY", 0.5, lambda g: [key(g), key(g), b"REPLACE"])
    add("GETDEL", 0.2, lambda g: [key(g)])
    add("EXPIRE", 0.3, lambda g: [key(g), g.ttl_s()])
    # fields and members of which only a digest tells them apart; no sorted set gets them, where it would order them
    alike = lambda g: [b"p" * 1100 + b"%02d" % g.i(60) for _ in range(1 + g.i(12))]  # noqa: E731
    add("HSET", 1, lambda g: [g.key("h")] + [x for m in alike(g) for x in (m, g.val())])
    add("HDEL", 0.7, lambda g: [g.key("h")] + alike(g))
    own = lambda g: g.c(g.keys["T"])  # noqa: E731
    add("SADD", 1, lambda g: [own(g)] + alike(g) + g.mems_n())
    add("SREM", 0.7, lambda g: [own(g)] + alike(g))
    add("SMOVE", 0.5, lambda g: [own(g), own(g), alike(g)[0]])
    for w in ("SUNIONSTORE", "SINTERSTORE", "SDIFFSTORE"):
        add(w, 0.3, lambda g: [own(g), own(g), own(g)])
    # many keys
    add("MSET", 1, lambda g: [x for _ in range(1 + g.i(60)) for x in (g.one_of_many(), g.val())])
    for w, n in (("DEL", 60), ("UNLINK", 60), ("EXISTS", 30), ("MGET", 30)):
        add(w, 0.5, lambda g, n=n: [g.one_of_many() for _ in range(1 + g.i(n))])
    add("SADD", 2, lambda g: [g.one_of_many()] + g.mems_n())
    add("HSET", 2, lambda g: [g.one_of_many(), g.mem(), g.val()])
    add("SMOVE", 1, lambda g: [g.key("t"), g.one_of_many(), g.mem()])
    add("COPY", 2, lambda g: [g.key(g.c("shltzxbg")), g.one_of_many()])
    add("RENAME", 1, lambda g: [g.one_of_many(), g.one_of_many()])
    add("EXPIRE", 1, lambda g: [g.one_of_many(), g.ttl_s()])
    return rows + stream_rows()


def stream_rows():
    """Rows for streams of some thousand entries with groups."""
    rows = []

    def add(name, weight, fn, norm="exact"):
        rows.append((name, "big", weight, lambda g: [g.c(g.keys["X"])] + fn(g), norm, False, True))

    group, consumer = (lambda g: g.c([b"g1", b"g2"])), (lambda g: g.c([b"c1", b"c2", b"c3"]))  # noqa: E731
    some = lambda g, n=80: g.entries(1 + g.i(n))  # noqa: E731
    ids = lambda g: (lambda e: [b"IDS", b"%d" % len(e), *e])(some(g))  # noqa: E731
    how = lambda g: [g.c([b"KEEPREF", b"DELREF", b"ACKED"])]  # noqa: E731
    add("XGROUP CREATE", 2, lambda g: [group(g), g.c([b"0", b"$", *g.entries(1)]), b"MKSTREAM"])
    add("XGROUP SETID", 0.3, lambda g: [group(g), g.c([b"0", b"$", *g.entries(1)])])
    add("XGROUP DELCONSUMER", 0.2, lambda g: [group(g), consumer(g)])
    add("XGROUP DESTROY", 0.05, lambda g: [group(g)])
    rows.append(("XREADGROUP", "big", 6, lambda g: [b"GROUP", group(g), consumer(g), b"COUNT", b"%d" % (1 + g.i(300)), b"STREAMS",
                                                    g.c(g.keys["X"]), g.c([b">", b">", b">", *g.entries(1)])], "mapflat", False, True))
    add("XACK", 2, lambda g: [group(g)] + some(g, 200))
    add("XDEL", 1, some)
    add("XDELEX", 0.7, lambda g: how(g) + ids(g))
    add("XACKDEL", 0.7, lambda g: [group(g)] + how(g) + ids(g))
    add("XTRIM", 0.3, lambda g: [b"MAXLEN", b"%d" % g.i(4000)] + (how(g) if g.p(0.3) else []))
    add("XTRIM", 0.2, lambda g: [b"MINID", *g.entries(1)])
    add("XCLAIM", 1, lambda g: [group(g), consumer(g), b"0"] + some(g) + g.c([[], [b"JUSTID"], [b"FORCE"], [b"RETRYCOUNT", b"7"]]))
    add("XAUTOCLAIM", 1, lambda g: [group(g), consumer(g), b"0", *g.entries(1), b"COUNT", b"%d" % (1 + g.i(200))])
    add("XPENDING", 1, lambda g: [group(g)] + g.c([[], [*g.entries(1), b"+", b"50"], [b"-", b"+", b"20", consumer(g)]]), "xpending")
    add("XRANGE", 1, lambda g: [*g.entries(1), b"+", b"COUNT", b"50"])
    add("XREVRANGE", 1, lambda g: [*g.entries(1), b"-", b"COUNT", b"50"])
    add("XINFO STREAM", 0.5, lambda g: [b"FULL", b"COUNT", b"20"], "xinfo")
    add("COPY", 0.2, lambda g: [g.c(g.keys["X"]), b"REPLACE"])
    add("RENAME", 0.1, lambda g: [g.c(g.keys["X"])])
    return rows


class Source:
    """The stream of commands: (name, command, normaliser, is a write)."""

    def __init__(self, opt, seed):
        self.maker = difffuzz.Maker(opt, seed)
        self.maker.g = self.g = g = BigGen(seed, opt)
        g.space, g.run = g.c([(300, 100), (4000, 700), (4000, 700), (4000, 700), (30000, 4000)])
        # what answers by chance where a collection is not small, single pages of cursors, and what is about another kind of
        # log; LCS of the longest values needs more memory than Tarn has here
        chance = ("SPOP", "SCAN", "HSCAN", "SSCAN", "ZSCAN", "WAITAOF", "LCS")
        rows = [r for r in difffuzz.table(opt) if r[1] in opt.group_set and r[0] not in chance and r[0] not in opt.skip_set and
                not (r[0] == "HRANDFIELD" and r[4] in ("set", "pairs"))]
        rows += extra_rows()
        self.maker.rows = [r[0:2] + r[3:] for r in rows]
        total = sum(r[2] for r in rows)
        self.maker.slots = [i for i, r in enumerate(rows) for _ in range(max(1, round(4096 * r[2] / total)))]
        self.maker.n = len(self.maker.slots)

    def one(self):
        return self.maker.one()

    def hot(self):
        """Writes to the same few elements of one collection of each type."""
        g = self.g
        key = {t: g.c(g.keys[t]) for t in "htzxlS"}
        names = [g.mem() for _ in range(5)]
        h, t, z, x, l, big = (key[k] for k in "htzxlS")
        writes = [lambda m: [b"HSET", h, m, g.val()], lambda m: [b"HSET", h, m, b"%d" % g.i(1000)], lambda m: [b"HDEL", h, m],
                  lambda m: [b"ZADD", z, b"%d" % g.i(50), m], lambda m: [b"ZADD", z, b"%d" % g.i(50), m], lambda m: [b"ZREM", z, m],
                  lambda m: [b"SADD", t, m], lambda m: [b"SREM", t, m], lambda m: [b"XADD", x, g.new_id(), m, b"1"],
                  lambda m: [b"XDEL", x, g.sid()], lambda m: [b"LSET", l, g.small(-3, 3), m], lambda m: [b"LPUSH", l, m],
                  lambda m: [b"RPOP", l], lambda m: [b"SETRANGE", big, b"%d" % (g.i(3) * 40000), m]]
        return [(c[0].decode(), c, "exact", True) for c in (g.c(writes)(g.c(names)) for _ in range(20))]

    def batch(self, n):
        """Commands and transactions of them."""
        out, g = [], self.g
        while len(out) < n:
            if g.p(0.02):
                out.append(("MULTI", [b"MULTI"], "exact", False))
                out += [x for x in (self.one() for _ in range(g.i(8))) if not isinstance(x[1], difffuzz.Dump)]
                out.append(("EXEC", [b"EXEC"], "exec", True) if g.p(0.9) else ("DISCARD", [b"DISCARD"], "exact", False))
            elif g.p(0.02):
                k, names = g.c(g.keys["X"]), g.c([[b"f"], [b"a", b"b"], [b"f", g.mem()]])
                for _ in range(g.i(300)):
                    BigGen.entry += 1
                    out.append(("XADD", [b"XADD", k, b"%d-1" % BigGen.entry] + [x for n in names for x in (n, g.val())], "exact", True))
            else:
                out.append(self.one())
        return out


class Reader(threading.Thread):
    """Reads along beside a batch, so that objects are fetched, completed and dropped while they are written and flushed."""

    def __init__(self, port, seed, opt):
        super().__init__(daemon=True)
        self.port, self.g, self.over = port, BigGen(seed, opt), False

    def command(self):
        g = self.g
        t = g.c("hhltzzxgSX")
        key, at = g.c(g.keys[t]), b"%d" % g.i(3000)
        return g.c({"h": [["HGETALL", key], ["HGET", key, g.mem()], ["HSCAN", key, "0", "COUNT", "50"], ["HLEN", key]],
                    "l": [["LRANGE", key, at, b"%d" % (int(at) + 100)], ["LINDEX", key, at], ["LINDEX", key, b"-" + at], ["LRANGE", key, "0", "-1"]],
                    "t": [["SMEMBERS", key], ["SISMEMBER", key, g.mem()], ["SRANDMEMBER", key, "5"], ["SCARD", key]],
                    "z": [["ZRANGE", key, at, b"%d" % (int(at) + 100)], ["ZRANK", key, g.mem()], ["ZSCORE", key, g.mem()], ["ZRANGE", key, "0", "-1"],
                          ["ZRANGEBYSCORE", key, at, "+inf", "LIMIT", "3", "5"], ["ZRANDMEMBER", key, "7"]],
                    "x": [["XRANGE", key, "-", "+", "COUNT", "20"], ["XLEN", key], ["XREVRANGE", key, "+", "-", "COUNT", "3"]],
                    "X": [["XRANGE", key, *g.entries(1), "+", "COUNT", "30"], ["XINFO", "STREAM", key], ["XPENDING", key, "g1"]],
                    "g": [["GEOSEARCH", key, "FROMLONLAT", "0", "0", "BYRADIUS", "3000", "km"]],
                    "S": [["GET", key], ["GETRANGE", key, at, b"%d" % (int(at) + 9000)]]}[t])

    def run(self):
        try:
            c = resp.Conn("127.0.0.1", self.port, timeout=60)
            while not self.over:
                c.pipe([self.command() for _ in range(3)])
            c.close()
        except (OSError, resp.ProtocolError):
            pass  # killed


class Flusher(threading.Thread):
    """Flushes one after the other beside a batch, so that much of what is written is in flight."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.port, self.over = port, False

    def run(self):
        try:
            c = resp.Conn("127.0.0.1", self.port, timeout=60)
            while not self.over:
                c.call("SAVE")
            c.close()
        except (OSError, resp.ProtocolError):
            pass  # killed


class Tarn:
    """The process under test, on one directory and port over all its lives."""

    def __init__(self, binary, folder, g, port):
        self.binary, self.port, self.log = binary, port, os.path.join(folder, "tarn.log")
        self.dir = os.path.join(folder, "data")
        os.makedirs(self.dir)
        shards = g.c(["16", "32", "64"])
        self.args = ["--port", str(port), "--bind", "127.0.0.1", "--dir", self.dir, "--shards", shards,
                     "--appendfsync", g.c(["always", "always", "everysec"]), "--io-threads", g.c(["1", "2"]),
                     # the caches, asked for beyond measure, leave a fifth of the smallest budget to the tables
                     "--enable-debug-command", "yes", "--maxmemory", "32mb", "--block-cache-size", "1gb", "--dirty-budget", g.c(["256kb", "1mb", "4mb"]),
                     "--log-max-size", g.c(["1mb", "4mb", "64mb"]), "--log-segment-size", "1mb"]
        self.proc = None
        self.start()

    def start(self):
        self.look_through()
        with open(self.log, "ab") as log:
            self.proc = subprocess.Popen([self.binary, *self.args], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_ready(self.port, self.proc)

    def look_through(self):
        """What a stop or a kill has left is whole, whatever it is."""
        if os.path.exists(os.path.join(self.dir, "SUPERBLOCK")):
            done = subprocess.run([self.binary, "check", self.dir], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            if done.returncode != 0:
                raise Differs("tarn check: " + done.stdout.decode("utf-8", "replace")[-3000:])

    def end(self, sig):
        if self.proc.poll() is not None:
            raise ConnectionError("it had ended by itself")
        self.proc.send_signal(sig)
        self.proc.wait(60)

    def tail(self):
        with open(self.log, "rb") as f:
            return f.read()[-3000:].decode("utf-8", "replace")

    def panicked(self):
        with open(self.log, "rb") as f:
            return [x for x in f.read().decode("utf-8", "replace").splitlines() if "panicked" in x or " ERROR " in x]


def wait_ready(port, proc):
    end = time.time() + 60
    while time.time() < end:
        if proc.poll() is not None:
            raise ConnectionError("ended during its start: %s" % proc.returncode)
        try:
            c = resp.Conn("127.0.0.1", port, timeout=5)
            if isinstance(c.call("DBSIZE"), int):
                return
        except (OSError, resp.ProtocolError):
            pass
        time.sleep(0.01)
    raise ConnectionError("does not answer after its start")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def scan_all(conn, name, key, count, *more):
    """All that a cursor gives."""
    head = [name] if key is None else [name, key]
    out, cur = [], b"0"
    for _ in range(100000):
        r = conn.call(*head, cur, "COUNT", str(count), *more)
        if isinstance(r, Error):
            return r
        cur, page = r
        out += page
        if cur == b"0":
            return out
    return Error(b"the cursor never came back to 0")


def as_set(v):
    return v if isinstance(v, Error) else sorted(set(map(rkey, v)))


def as_pairs(v):
    if isinstance(v, Error):
        return v
    return sorted({(rkey(v[i]), rkey(v[i + 1])) for i in range(0, len(v), 2)})


def as_scores(v):
    return v if isinstance(v, Error) else sorted({(v[i], float(v[i + 1])) for i in range(0, len(v), 2)})


def times_of(conn, key, parts):
    """The times of a hash's fields, asked part by part; the first error there is."""
    replies = [conn.call("HPEXPIRETIME", key, "FIELDS", str(len(part)), *part) for part in parts]
    return next((r for r in replies if isinstance(r, Error)), [time for r in replies for time in r])


def call(*cmd):
    return lambda c: c.call(*cmd)


def probes(g, key, typ, model):
    """Ways to look at a key: (name, function of a connection)."""
    n = lambda m: b"%d" % g.i(m)  # noqa: E731
    step = g.c([3, 10, 100, 1000])
    if typ == b"string":
        return [("STRLEN", call("STRLEN", key)), ("GET", call("GET", key)), ("BITCOUNT", call("BITCOUNT", key))] + [
            ("GETRANGE", call("GETRANGE", key, a, b"%d" % (int(a) + 500))) for a in (n(1000), n(300000))]
    if typ == b"hash":
        names = model.call("HKEYS", key)
        some = [g.c(names) for _ in range(8)] + [g.mem()]
        # What one command may hold, in so little memory, is fewer than the largest hash has.
        parts = [names[at:at + 4096] for at in range(0, len(names), 4096)]
        return [("HLEN", call("HLEN", key)), ("HGETALL", lambda c: difffuzz.norm_pairs(c.call("HGETALL", key))),
                ("HSCAN", lambda c: as_pairs(scan_all(c, "HSCAN", key, step))), ("HKEYS", lambda c: as_set(c.call("HKEYS", key))),
                ("HMGET", call("HMGET", key, *some)), ("HSTRLEN", call("HSTRLEN", key, some[0])),
                ("HPEXPIRETIME", lambda c: times_of(c, key, parts))]
    if typ == b"list":
        size = model.call("LLEN", key)
        at = [b"%d" % (g.i(2 * size) - size) for _ in range(6)] + [b"0", b"-1"]
        return [("LLEN", call("LLEN", key)), ("LRANGE", call("LRANGE", key, "0", "-1"))] + [
            ("LINDEX", call("LINDEX", key, a)) for a in at] + [
            ("LRANGE window", call("LRANGE", key, a, b"%d" % (int(a) + g.i(50)))) for a in at[:3]] + [
            ("LPOS", call("LPOS", key, g.mem(), "COUNT", "0"))]
    if typ == b"set":
        members = model.call("SMEMBERS", key)
        some = [g.c(members) for _ in range(8)] + [g.mem()]
        return [("SCARD", call("SCARD", key)), ("SMEMBERS", lambda c: as_set(c.call("SMEMBERS", key))),
                ("SSCAN", lambda c: as_set(scan_all(c, "SSCAN", key, step))), ("SMISMEMBER", call("SMISMEMBER", key, *some)),
                ("SRANDMEMBER in the set", lambda c: set(c.call("SRANDMEMBER", key, "20")) <= set(members)),
                ("SRANDMEMBER all", lambda c: as_set(c.call("SRANDMEMBER", key, str(len(members) + 5))))]
    if typ == b"zset":
        members = model.call("ZRANGE", key, "0", "-1")
        some = [g.c(members) for _ in range(6)] + [g.mem()]
        at = [b"%d" % (g.i(2 * len(members)) - len(members)) for _ in range(4)]
        low = g.i(300)
        return [("ZCARD", call("ZCARD", key)), ("ZRANGE", call("ZRANGE", key, "0", "-1", "WITHSCORES")),
                ("ZSCAN", lambda c: as_scores(scan_all(c, "ZSCAN", key, step))), ("ZMSCORE", call("ZMSCORE", key, *some)),
                ("ZCOUNT", call("ZCOUNT", key, "-inf", "+inf")), ("ZCOUNT window", call("ZCOUNT", key, str(low), "(%d" % (low + 40))),
                ("ZRANGEBYSCORE", call("ZRANGEBYSCORE", key, str(low), "+inf", "LIMIT", "5", "9")),
                ("ZRANDMEMBER all", lambda c: as_set(c.call("ZRANDMEMBER", key, str(len(members) + 5))))] + [
            (w, call(w, key, m)) for m in some for w in ("ZRANK", "ZREVRANK")] + [
            ("ZRANGE window", call("ZRANGE", key, a, b"%d" % (int(a) + g.i(60)), *g.c([[], ["REV"]]))) for a in at]
    if typ == b"stream":
        return [("XLEN", call("XLEN", key)), ("content", lambda c: difffuzz.content(c, key, typ)),
                ("XINFO", lambda c: difffuzz.norm_xinfo(c.call("XINFO", "STREAM", key, "FULL", "COUNT", "0"))),
                ("XRANGE", call("XRANGE", key, g.srange_id(), "+", "COUNT", "20")),
                ("XREVRANGE", call("XREVRANGE", key, "+", "-", "COUNT", n(60)))]
    return []


class Run:
    """Both servers and what has happened to them."""

    def __init__(self, opt, tarn, redis_port, g):
        self.opt, self.tarn, self.g = opt, tarn, g
        self.redis_port, self.proto = redis_port, 2
        self.history, self.seen, self.notes = [], 0, {}
        self.cr = self.ct = None
        self.relaxed = False
        self.dumps, self.stats = [], {}
        self.connect()

    def connect(self):
        for c in (self.cr, self.ct):
            if c is not None:
                c.close()
        self.cr, self.ct = (resp.Conn("127.0.0.1", p, timeout=60) for p in (self.redis_port, self.tarn.port))
        if self.proto == 3:
            self.cr.call("HELLO", "3"), self.ct.call("HELLO", "3")

    def info(self):
        """Counts of what INFO tarn tells, which end with each life of the process."""
        for line in self.ct.call("INFO", "tarn").decode().splitlines():
            name, _, value = line.partition(":")
            if name in ("tarn_evicted_objects", "tarn_flushes", "tarn_store_reads", "tarn_replayed_records"):
                self.stats[name[5:]] = self.stats.get(name[5:], 0) + int(value)

    def note(self, text):
        self.history.append((text, None))

    def fail(self, text, keys=()):
        """The difference with the commands that named one of the keys, and the events between them."""
        lines = []
        for cmd, reply in self.history:
            if isinstance(cmd, str):
                lines.append("# " + cmd)
            elif any(k in cmd for k in keys) or cmd[0].upper() in (b"FLUSHALL", b"FLUSHDB", b"SWAPDB", b"SELECT"):
                lines.append(show_cmd(cmd)[:300] + "   -> " + show(reply, 60))
        raise Differs(text + "\n  before it:\n    " + "\n    ".join(lines[-60:]))

    def same(self, norm, cmd, a, b):
        if norm in ("ttl", "ttlms"):
            return difffuzz.close_ttl(a, b, SKEW_MS if norm == "ttlms" else SKEW_MS // 1000)
        if self.relaxed and isinstance(a, int) and isinstance(b, int) and cmd[0].upper() in (b"HSET", b"SADD"):
            return True
        return compare(norm, a, b) in (None, "near")

    def judge(self, items, ra, rb):
        queued = []
        for (name, cmd, norm, _), a, b in zip(items, ra, rb):
            self.history.append((cmd, a))
            subs = [(cmd, norm, a, b)]
            if a == b"QUEUED" and b == b"QUEUED":
                queued.append((cmd, norm))
                continue
            if name == "EXEC" and type(a) is list and type(b) is list and len(a) == len(b) == len(queued):
                subs = [(c, n, x, y) for (c, n), x, y in zip(queued, a, b)]
            if name in ("MULTI", "EXEC", "DISCARD"):
                queued = []
            for c, n, x, y in subs:
                if not self.same(n, c, x, y):
                    self.fail("%s\n  model %s\n  tarn  %s" % (show_cmd(c)[:400], show(x, 400), show(y, 400)),
                              [k for k in c if type(k) is K])
                if type(c) is difffuzz.Dump and type(x) is bytes and type(y) is bytes:
                    self.dumps.append((c, x, y))
        self.history = self.history[-60000:]
        self.seen += len(items)

    def batch(self, items):
        """One batch on both; payloads of DUMP come back in the next one, now and then to the other server."""
        back, self.dumps = self.dumps, []
        swap = [self.g.p(0.5) for _ in back]
        lists = [[("RESTORE", difffuzz.restore(d[0], d[1 + (i ^ s)]), "exact", True) for d, s in zip(back, swap)] + items for i in (0, 1)]
        for c, batch in zip((self.cr, self.ct), lists):
            threading.Thread(target=c.send, args=(b"".join(encode(x[1]) for x in batch),)).start()
        ra = [self.cr.read() for _ in lists[0]]
        rb = [self.ct.read() for _ in lists[1]]
        self.judge(lists[0], ra, rb)

    def both(self, *cmd):
        a, b = self.cr.call(*cmd), self.ct.call(*cmd)
        self.history.append(([x if isinstance(x, bytes) else x.encode() for x in cmd], a))
        return a, b

    def filler(self, commands):
        c = resp.Conn("127.0.0.1", self.tarn.port, timeout=60)
        c.call("SELECT", "2")
        for at in range(0, len(commands), 50):
            c.pipe(commands[at:at + 50])
        c.close()

    def pops(self):
        """What Tarn takes out by chance is taken out of the model by name."""
        for _ in range(self.g.i(3)):
            key = self.g.key("t")
            if self.cr.call("TYPE", key) != b"set":
                continue
            size = self.cr.call("SCARD", key)
            count = self.g.c([1, 5, self.g.i(size + 10), size - 3, size])
            got = self.ct.call("SPOP", key, str(max(count, 0)))
            self.history.append(([b"SPOP", key, b"%d" % count], len(got)))
            if len(got) != min(max(count, 0), size) or (got and self.cr.call("SREM", key, *got) != len(got)):
                self.fail("SPOP %s %d gave %d, some not in the set of %d" % (key.decode(), count, len(got), size), [key])

    # events
    def event(self, source):
        g = self.g
        what = g.c([w for w, n in EVENTS.items() for _ in range(n) if w in (self.opt.events or EVENTS)])
        self.stats[what] = self.stats.get(what, 0) + 1
        self.note(what)
        if what in STARTS:
            self.info()
        if what == "idle":
            time.sleep(0.05 + g.rnd() * 0.3)
        elif what in ("save", "bgsave"):
            self.ct.call(what)
        elif what == "hot":
            self.hot(source)
        elif what == "read":
            self.filler([[b"GET", b"filler:%d" % i] for i in range(FILLER)])
        elif what == "expire":
            self.expire()
        elif what in ("restart", "kill"):
            self.tarn.end(signal.SIGTERM if what == "restart" else signal.SIGKILL)
        elif what == "killflush":
            self.ct.call("BGSAVE")
            time.sleep(g.rnd() * g.c([0.01, 0.1, 0.4]))
            self.tarn.end(signal.SIGKILL)
        elif what == "killload":
            self.kill_under_load(source)
        if what in STARTS:
            if what == "hot":
                self.tarn.end(signal.SIGKILL)
            if what != "killload":
                self.start_again()
            self.connect()
        return what

    def hot(self, source):
        """The same elements written while one flush follows the other, that change in flight; then all must have reached the store."""
        flusher = Flusher(self.tarn.port)
        flusher.start()
        items = [source.hot() for _ in range(1 + self.g.i(3))]
        end, turn = time.time() + 0.1 + self.g.rnd() * 0.4, 0
        while time.time() < end:
            self.batch(items[turn % len(items)])
            turn += 1
        flusher.over = True
        flusher.join()
        self.both("SET", COUNTER, "0")  # so that there is something to flush
        self.ct.call("SAVE")

    def expire(self):
        """Keys and fields expire and are met by commands before a sweep comes by. Redis's replies to those hang on its sweep."""
        g = self.g
        self.both("DEBUG", "SET-ACTIVE-EXPIRE", "0")
        # Without a time of their own: a hash of which all fields have expired keeps none here.
        hashes = sorted({k for k in (g.key("h") for _ in range(6)) if self.cr.call("TYPE", k) == b"hash" and self.cr.call("PTTL", k) == -1})
        others = [g.key(g.c("sltzx")) for _ in range(4)]
        names = {key: self.cr.call("HKEYS", key) or [g.mem()] for key in hashes}
        for key in hashes:
            gone = list({g.c(names[key]) for _ in range(1 + g.i(g.c([3, 30, 300])))})
            self.both("HPEXPIRE", key, "1", "FIELDS", str(len(gone)), *gone)
        for key in others:
            self.both("PEXPIRE", key, "1")
        time.sleep(0.02)
        for _ in range(g.i(60)):
            key = g.c(hashes + others)
            self.both(*(self.on_unswept_hash(key, names[key]) if key in hashes else self.on_unswept(key)))
        self.both("DEBUG", "SET-ACTIVE-EXPIRE", "1")
        for _ in range(400):
            # Both sweeps have come by.
            a, b = (set(c.call("KEYS", "*")) for c in (self.cr, self.ct))
            if a == b and all(self.cr.call("HLEN", key) == self.ct.call("HLEN", key) for key in hashes if key in a):
                break
            time.sleep(0.05)

    def on_unswept_hash(self, key, names):
        """A command on a hash of which fields have expired: none whose outcome hangs on the sweep (COMPAT.md)."""
        g = self.g
        field = lambda: g.c(names) if g.p(0.5) else g.mem()  # noqa: E731
        return g.c([lambda: ["HSET", key, field(), g.val(), field(), g.val()], lambda: ["HSETNX", key, field(), g.val()],
                    lambda: ["HDEL", key, field(), field()], lambda: ["HGETDEL", key, "FIELDS", "1", field()],
                    lambda: ["HGET", key, field()], lambda: ["HLEN", key],
                    lambda: ["HSETEX", key, "EX", "10000", "FIELDS", "1", field(), g.val()]])()

    def on_unswept(self, key):
        """A command on a key that has expired, if it was there."""
        g = self.g
        return g.c([["SADD", key, g.mem()], ["RPUSH", key, g.mem()], ["ZADD", key, "1", g.mem()], ["APPEND", key, "x"], ["PERSIST", key],
                    ["RENAME", key, g.key("l")], ["LPOP", key], ["SETRANGE", key, "3", "x"],
                    ["XADD", key, "MAXLEN", "10", g.new_id(), "a", "b"], ["COPY", key, g.key("t"), "REPLACE"]])

    def start_again(self):
        while self.g.p(0.15):  # killed once more on its way up
            proc = subprocess.Popen([self.tarn.binary, *self.tarn.args], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                    stderr=subprocess.DEVNULL)
            time.sleep(self.g.rnd() * 0.3)
            proc.kill()
            proc.wait()
        self.tarn.start()

    def kill_under_load(self, source):
        g = self.g
        self.both("SELECT", "0")
        self.both("SET", COUNTER, "0")
        items = []
        while len(items) < 150:
            x = source.one()
            if x[0] not in ("SELECT", "SWAPDB", "MOVE") and not isinstance(x[1], difffuzz.Dump):
                items.append(x)
        wrapped = [[[b"MULTI"], x[1], [b"INCR", COUNTER], [b"EXEC"]] for x in items]
        if g.p(0.4):
            self.ct.call("BGSAVE")
        timer = threading.Timer(g.rnd() * g.c([0.02, 0.2, 0.6]), self.tarn.end, (signal.SIGKILL,))
        timer.start()
        got = []
        try:
            for at in range(0, len(wrapped), 5):
                part = wrapped[at:at + 5]
                self.ct.send(b"".join(encode(c) for w in part for c in w))
                for w in part:
                    got.append([self.ct.read() for _ in w])
        except (OSError, resp.ProtocolError):
            pass
        timer.join()
        self.start_again()
        probe = resp.Conn("127.0.0.1", self.tarn.port)
        found = int(probe.call("GET", COUNTER))
        probe.close()
        self.note("killed under load: %d commands acknowledged, count %d" % (len(got), found))
        done = count = 0
        for item, w in zip(items, wrapped):
            if done >= len(got) and count >= found:
                break
            replies = [self.cr.call(*c) for c in w]
            if isinstance(replies[3], list):
                count = replies[3][-1]
            if done < len(got):
                pairs = zip([("MULTI", w[0], "exact", False), item, ("INCR", w[2], "exact", True), ("EXEC", w[3], "exec", True)],
                            replies, got[done])
                self.judge(*zip(*pairs))
            else:
                self.history += zip(w, replies)
            done += 1
        if count != found:
            self.fail("killed under load: %d commands acknowledged, the count is %d and should be %d" % (len(got), found, count),
                      [COUNTER])

    # the look at everything
    def check(self):
        g, cr, ct = self.g, self.cr, self.ct
        for db in (b"0", b"1") if self.opt.multi_db else (b"0",):
            self.both("SELECT", db)
            looks = [("KEYS", lambda c: sorted(set(c.call("KEYS", "*")))),
                     ("SCAN", lambda c: sorted(set(scan_all(c, "SCAN", None, g.c([5, 50, 1000])))))]
            for name, fn in looks:
                a, b = fn(cr), fn(ct)
                if a != b and self.went(set(a) ^ set(b)):
                    a, b = fn(cr), fn(ct)
                if a != b:
                    self.fail("db%s %s: only in the model %r, only in tarn %r\n%s" % (
                        db.decode(), name, sorted(set(a) - set(b))[:5], sorted(set(b) - set(a))[:5],
                        "\n".join(self.told(key) for key in sorted(set(a) ^ set(b))[:3])), set(a) ^ set(b))
            size = cr.call("DBSIZE"), ct.call("DBSIZE")
            if size[0] != size[1] and not self.settled():
                self.fail("db%s DBSIZE: model %d, tarn %d" % (db.decode(), *size))
            keys = cr.call("KEYS", "*")
            g.rng.shuffle(keys)
            many = [k for k in keys if k.startswith(b"n:")]
            for key in [k for k in keys if not k.startswith(b"n:")] + many[:30]:
                self.check_key(db, key)
        self.both("SELECT", "0")

    def went(self, keys):
        """Whether keys that one of the servers does not list are soon on neither: their time was over, and a sweep had not come by."""
        for _ in range(40):
            time.sleep(0.05)
            if not any(c.call("EXISTS", *keys) for c in (self.cr, self.ct)):
                return True
        return False

    def settled(self):
        """Keys set with a time that is past count until they are swept."""
        for _ in range(40):
            time.sleep(0.05)
            if self.cr.call("DBSIZE") == self.ct.call("DBSIZE"):
                return True
        return False

    def told(self, key):
        """What the two servers say of a key that one of them does not list."""
        looks = [["TYPE", key], ["PTTL", key], ["OBJECT", "ENCODING", key], ["HLEN", key], ["HKEYS", key], ["DEBUG", "OBJECT", key]]
        said = lambda c: ", ".join("%s %s" % (" ".join(look[:-1]), show(c.call(*look), 200)) for look in looks)  # noqa: E731
        return "  %s\n  model %s\n  tarn  %s" % (show_cmd([key]), said(self.cr), said(self.ct))

    def check_key(self, db, key):
        g = self.g
        typ = self.cr.call("TYPE", key)
        ways = probes(g, key, typ, self.cr)
        g.rng.shuffle(ways)
        ways.insert(g.i(len(ways) + 1), ("TYPE", call("TYPE", key)))
        tried = []
        for name, fn in ways:
            a, b = fn(self.cr), fn(self.ct)
            tried.append(name)
            if a != b and not resp.near_any(a, b) and not (name == "HPEXPIRETIME" and difffuzz.close_ttl(a, b, SKEW_MS)):
                self.fail("db%s %s %s, looked at by %s\n  model %s\n  tarn  %s\n%s" % (
                    db.decode(), show_cmd([key]), typ.decode(), ", ".join(tried), show(a, 300), show(b, 300), difference(a, b)), [key])
        a, b = self.cr.call("PTTL", key), self.ct.call("PTTL", key)
        if not difffuzz.close_ttl(a, b, SKEW_MS):
            self.fail("db%s %s PTTL: model %r, tarn %r" % (db.decode(), show_cmd([key]), a, b), [key])

    def begin_epoch(self, seed):
        g = self.g
        self.note("epoch, seed %d" % seed)
        self.both("SELECT", "0")
        if g.p(0.8):
            if g.p(0.2):
                self.both("FLUSHALL")
            for db in "10":
                self.both("SELECT", db), self.both("FLUSHDB")
            self.dumps = []
        # After FLUSHALL only: with a small dirty budget it takes seconds.
        self.filler([[b"SETNX", b"filler:%d" % i, b"f" * 20000] for i in range(FILLER)])
        versions = [g.c([b"0", b"0", b"1"]) for _ in range(3)]
        self.relaxed = self.relaxed or b"1" in versions[:2]
        for t, v in zip(("hash", "set", "zset"), versions):
            self.ct.call("CONFIG", "SET", t + "-encode-version", v)
            self.note("%s-encode-version %s" % (t, v.decode()))
        # RESTART loses CONFIG SET: the arguments carry it
        keep = [x for x in self.tarn.args]
        for t, v in zip(("hash", "set", "zset"), versions):
            name = "--%s-encode-version" % t
            if name in keep:
                keep[keep.index(name) + 1] = v.decode()
            else:
                keep += [name, v.decode()]
        self.tarn.args = keep
        self.proto = g.c([2, 3])
        self.connect()


def difference(a, b):
    """Where two long sequences part."""
    if isinstance(a, list) and isinstance(b, list):
        for i, (x, y) in enumerate(zip(a, b)):
            if x != y:
                return "  %d and %d items, first difference at %d: %s, %s" % (len(a), len(b), i, show(x, 200), show(y, 200))
        return "  %d and %d items, one begins with the other" % (len(a), len(b))
    return ""


def options():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--tarn", required=True)
    ap.add_argument("--redis", required=True)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--rounds", type=int, default=0)
    ap.add_argument("--seconds", type=float, default=0)
    ap.add_argument("--batch", type=int, default=200)
    ap.add_argument("--epoch", type=int, default=12, help="rounds between two FLUSHDB")
    ap.add_argument("--groups", default=GROUPS)
    ap.add_argument("--events", type=lambda s: s.split(","))
    ap.add_argument("--skip", default="")
    ap.add_argument("--keep", help="directory for the data, kept afterwards")
    opt = ap.parse_args()
    opt.group_set, opt.skip_set = set(opt.groups.split(",")), set(opt.skip.upper().split(","))
    opt.only_set, opt.valkey, opt.ver, opt.since = None, False, 8.2, "8.2"
    opt.hll_bytes, opt.approx_trim, opt.block, opt.multi_db, opt.encoding = True, False, False, True, False
    difffuzz.content.hll_bytes = True
    return opt


def torture(opt, run):
    end = time.time() + opt.seconds if opt.seconds else None
    rounds = epoch = 0
    while rounds < (opt.rounds or 10**9) and (end is None or time.time() < end):
        seed = opt.seed * 1000003 + epoch
        source = Source(opt, seed)
        run.begin_epoch(seed)
        for _ in range(opt.epoch):
            beside = [Reader(run.tarn.port, source.g.i(10**9), opt)] * run.g.p(0.3) + [Flusher(run.tarn.port)] * run.g.p(0.4)
            for thread in beside:
                thread.start()
            run.batch(source.batch(1 + run.g.i(opt.batch)))
            run.pops()
            what = run.event(source)
            for thread in beside:
                thread.over = True
            for thread in beside:
                thread.join()
            if what in STARTS or what == "expire" or run.g.p(0.3):
                run.check()
            rounds += 1
            if (opt.rounds and rounds >= opt.rounds) or (end and time.time() > end):
                break
        run.check()
        epoch += 1
    return rounds, epoch


def main():
    opt = options()
    with tempfile.TemporaryDirectory() as folder:
        folder = opt.keep or folder
        os.makedirs(folder, exist_ok=True)
        g = difffuzz.Gen(opt.seed, opt)
        redis_port = free_port()
        redis = subprocess.Popen([opt.redis, "--port", str(redis_port), "--bind", "127.0.0.1", "--save", "", "--dir", folder,
                                  "--enable-debug-command", "yes"],
                                 stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        tarn = None
        try:
            wait_ready(redis_port, redis)
            tarn = Tarn(opt.tarn, folder, g, free_port())
            run = Run(opt, tarn, redis_port, g)
            try:
                rounds, epochs = torture(opt, run)
            except Differs as e:
                print("seed %d differs: %s\n%s" % (opt.seed, e, "\n".join(tarn.panicked())))
                return 1
            except (OSError, resp.ProtocolError, ValueError) as e:
                time.sleep(0.2)
                print("seed %d: %s: %s\n%s\n%s" % (opt.seed, type(e).__name__, e, "\n".join(tarn.panicked()), tarn.tail()))
                return 3
            if tarn.panicked():
                print("seed %d: %s" % (opt.seed, "\n".join(tarn.panicked())))
                return 3
            print("seed %d: %d rounds in %d epochs, %d commands, events %s" % (opt.seed, rounds, epochs, run.seen, run.stats))
            return 0
        finally:
            for p in (redis, tarn and tarn.proc):
                if p:
                    p.kill()
                    p.wait()


if __name__ == "__main__":
    sys.exit(main())
