#!/usr/bin/env python3
"""Differential fuzzer of those who wait: several clients of a reference and of a target do the same, step by step.

usage: waitfuzz.py --ref HOST:PORT --target HOST:PORT [--seed N] [--count N] [--epoch N] [--clients N]
                   [--examples N] [--spread] [--track] [--stop-first]

In a step one client that does not wait sends something: a command that may wait (BLPOP, BLMOVE, BLMPOP, BZPOPMIN, BZMPOP, XREAD,
XREADGROUP and their kin), one that makes keys ready or takes them away (pushes, RENAME, COPY, RESTORE, MOVE, SWAPDB, SORT STORE,
FLUSHDB, XGROUP DESTROY ...), a transaction, after a WATCH or not, a script, CLIENT UNBLOCK or KILL of another; or a client
that waits hangs up. Nothing races: the next step comes when the client was answered or waits, and all that were served on the
reference by it have been so on the target.  Compared are the replies of all, who of them waits after the step, the keyspace
events of every key in their order, INFO's counters of waiters now and then, and the whole key space at the end of an epoch.
Keys have one hash tag, unless --spread: then keys lie in different shards of a target that has shards.
With --track there are clients, too, that read keys and are told of changes (CLIENT TRACKING): compared is of what.
Exit status as difffuzz.py's.
"""
import argparse
import collections
import os
import random
import select
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import difffuzz  # noqa: E402
import resp  # noqa: E402
from resp import Error, rkey, show_both, show_cmd, strict_eq  # noqa: E402
from scripts import literal  # noqa: E402

REF, TARGET = 0, 1
# How long a client may take to be answered or to wait, in seconds.
PATIENCE = 30
# FLUSHALL of Redis waits, too, for a moment.
MAY_WAIT = {b"BLPOP", b"BRPOP", b"BLMOVE", b"BRPOPLPUSH", b"BLMPOP", b"BZPOPMIN", b"BZPOPMAX", b"BZMPOP", b"XREAD", b"XREADGROUP"}


class Mismatch(Exception):
    """What one server did otherwise than the other: the epoch ends."""

    def __init__(self, what, a, b):
        super().__init__(what)
        self.what, self.a, self.b = what, a, b


class Gone:
    def __repr__(self):
        return "(gone)"


class Pair:
    """A client of both servers."""

    def __init__(self, servers, n):
        self.n = n
        self.conns = [resp.Conn(*at, timeout=PATIENCE) for at in servers]
        self.ids = [c.call("CLIENT", "ID") for c in self.conns]
        self.waits = None  # the command that it waits with
        self.swaps = 0  # databases swapped since it watches

    def send(self, commands):
        for s, conn in enumerate(self.conns):
            conn.send(b"".join(resp.encode([x[s] if type(x) is tuple else x for x in cmd]) for cmd in commands))

    def read(self, s):
        try:
            return self.conns[s].read(keep_push=True)
        except (OSError, resp.ProtocolError):
            return Gone()

    def has_news(self, s):
        conn = self.conns[s]
        return conn.pos < len(conn.buf) or bool(select.select([conn.sock], [], [], 0)[0])

    def close(self):
        for c in self.conns:
            c.close()


class Tracker:
    """A client of both servers that is told of changes to what it has read, or of all."""

    MODES = [[], [], [b"NOLOOP"], [b"BCAST"], [b"BCAST", b"PREFIX", b"l", b"PREFIX", b"x"], [b"BCAST", b"NOLOOP"]]
    # Of an expiry the instant, not what is left of it: no two servers answer in the same millisecond.
    READS = {
        "l": [[b"LRANGE", None, b"0", b"-1"], [b"LLEN", None], [b"LPOS", None, b"v1"]],
        "z": [[b"ZRANGE", None, b"0", b"-1"], [b"ZCARD", None], [b"ZSCORE", None, b"v1"]],
        "x": [[b"XLEN", None], [b"XRANGE", None, b"-", b"+"], [b"XREAD", b"STREAMS", None, b"0"], [b"XREVRANGE", None, b"+", b"-"]],
        "s": [[b"GET", None], [b"MGET", None, None], [b"STRLEN", None], [b"GETRANGE", None, b"0", b"1"]],
        "o": [[b"SCARD", None], [b"SMISMEMBER", None, b"v1"], [b"TYPE", None], [b"EXISTS", None, None], [b"EXPIRETIME", None]],
    }

    def __init__(self, servers, mode):
        self.conns = [resp.Conn(*at, timeout=PATIENCE) for at in servers]
        self.mode = mode
        for c in self.conns:
            c.call("HELLO", "3")
            c.call("CLIENT", "TRACKING", "ON", *mode)

    def told(self):
        """What both have been told of since the last time; a flush is None, and tells of all else."""
        told = [set(), set()]
        end = time.time() + 2
        while True:
            for s, c in enumerate(self.conns):
                c.call("PING")
                for push in c.pushes:
                    told[s].update(push[1] if type(push[1]) is list else [None])
                c.pushes.clear()
                if None in told[s]:
                    told[s] = {None}
            if told[REF] == told[TARGET] or time.time() > end:
                return [sorted(x, key=repr) for x in told]
            time.sleep(0.001)

    def close(self):
        for c in self.conns:
            c.close()


class Crowd:
    """The clients of one epoch."""

    def __init__(self, opt, seed):
        self.opt, self.rng = opt, random.Random(seed)
        self.servers = [difffuzz.addr(a) for a in (opt.ref, opt.target)]
        self.control = [resp.Conn(*at, timeout=PATIENCE) for at in self.servers]
        for c in self.control:
            c.call("FLUSHALL")
        self.events = [difffuzz.Events(at, PATIENCE) for at in self.servers]
        self.last_events = collections.defaultdict(dict)  # of each key and database of the reference
        self.pairs = [self.pair(n) for n in range(opt.clients)]
        self.trackers = [Tracker(self.servers, self.c(Tracker.MODES)) for _ in range(3 if opt.track else 0)]
        self.history = collections.deque(maxlen=40)
        self.entry = 0
        tag = "" if opt.spread else "{t}"
        self.keys = {t: [("%s%s%d" % (t, tag, i)).encode() for i in range(3)] for t in "lzxso"}

    def pair(self, n):
        pair = Pair(self.servers, n)
        if self.p(0.4):
            for conn in pair.conns:
                conn.call("HELLO", "3")
        return pair

    # chance
    def i(self, n):
        return int(self.rng.random() * n)

    def c(self, seq):
        return seq[self.i(len(seq))]

    def p(self, x):
        return self.rng.random() < x

    # arguments
    def key(self, t):
        return self.c(self.keys[self.c("lzxso") if self.p(0.06) else t])

    def some(self, t):
        return [self.key(t) for _ in range(1 + self.i(3))]

    def value(self):
        self.entry += 1
        return b"v%d" % self.entry

    def timeout(self, of_ms=False):
        r = self.rng.random()
        if r < 0.55:
            return b"0"
        if r < 0.9:
            return self.c([b"1000000", b"600000"]) if of_ms else self.c([b"1000", b"999.5", b"600.25"])
        if r < 0.95:
            return self.c([b"1", b"5"]) if of_ms else self.c([b"0.001", b"0.02"])
        return self.c([b"-1", b"abc", b"", b"1e400", b"9223372036854775807", b"0x10"])

    def counted(self, t, tail):
        keys = self.some(t)
        n = b"%d" % len(keys) if self.p(0.97) else self.c([b"0", b"-1", b"9", b"a"])
        return [n] + keys + tail + ([b"COUNT", b"%d" % self.i(4)] if self.p(0.4) else [])

    def waiting(self):
        """A command that may wait."""
        side = lambda: self.c([b"LEFT", b"RIGHT"])  # noqa: E731
        end = lambda: self.c([b"MIN", b"MAX"])  # noqa: E731
        k = self.i(11)
        if k < 2:
            return [self.c([b"BLPOP", b"BRPOP"])] + self.some("l") + [self.timeout()]
        if k == 2:
            return [b"BLMOVE", self.key("l"), self.key("l"), side(), side(), self.timeout()]
        if k == 3:
            return [b"BRPOPLPUSH", self.key("l"), self.key("l"), self.timeout()]
        if k == 4:
            return [b"BLMPOP", self.timeout()] + self.counted("l", [side()])
        if k < 7:
            return [self.c([b"BZPOPMIN", b"BZPOPMAX"])] + self.some("z") + [self.timeout()]
        if k == 7:
            return [b"BZMPOP", self.timeout()] + self.counted("z", [end()])
        count = [b"COUNT", b"%d" % (1 + self.i(3))] if self.p(0.3) else []
        keys = self.some("x")
        block = [b"BLOCK", self.timeout(True)]
        if k == 8:
            ids = [self.c([b"$", b"$", b"$", b"+", b"0", b"%d-0" % self.entry]) for _ in keys]
            return [b"XREAD"] + count + block + [b"STREAMS"] + keys + ids
        ids = [self.c([b">"] * 9 + [b"0"]) for _ in keys]
        noack = [b"NOACK"] if self.p(0.2) else []
        return [b"XREADGROUP", b"GROUP", self.c([b"g", b"g", b"h"]), self.c([b"c", b"d"])] + count + block + noack + [b"STREAMS"] + keys + ids

    def pushing(self):
        """A command that changes keys."""
        values = lambda: [self.value() for _ in range(1 + self.i(3))]  # noqa: E731
        scored = lambda: [x for _ in range(1 + self.i(3)) for x in (b"%d" % self.i(5), self.value())]  # noqa: E731
        k = self.i(34)
        if k < 7:
            return [self.c([b"LPUSH", b"RPUSH"]), self.key("l")] + values()
        if k < 11:
            return [b"ZADD", self.key("z")] + scored()
        if k < 15:
            self.entry += 1
            return [b"XADD", self.key("x"), b"%d-%d" % (self.entry, self.i(3)), b"f", b"%d" % self.entry]
        if k < 18:
            return [b"XGROUP", b"CREATE", self.key("x"), self.c([b"g", b"g", b"h"]), self.c([b"0", b"$", b"$"]), b"MKSTREAM"]
        one = lambda: self.key(self.c("llzzxxo"))  # noqa: E731
        other = [
            lambda: [b"RENAME", one(), one()],
            lambda: [b"RENAMENX", one(), one()],
            lambda: [b"COPY", one(), one()] + self.c([[], [b"REPLACE"], [b"DB", b"1"], [b"DB", b"1", b"REPLACE"]]),
            lambda: [b"MOVE", one(), self.c([b"0", b"1"])],
            lambda: [b"SWAPDB", b"0", b"1"],
            lambda: [b"SORT", self.key(self.c("lo")), b"ALPHA", b"STORE", self.key("l")],
            lambda: [b"ZUNIONSTORE", self.key("z"), b"1", self.key("z")],
            lambda: [b"ZRANGESTORE", self.key("z"), self.key("z"), b"0", b"-1"],
            lambda: [b"DEL"] + [one() for _ in range(1 + self.i(3))],
            lambda: [self.c([b"LPOP", b"RPOP"]), self.key("l")],
            lambda: [b"LMOVE", self.key("l"), self.key("l"), b"LEFT", b"RIGHT"],
            lambda: [b"LPUSHX", self.key("l")] + values(),
            lambda: [b"SADD", self.key("o")] + values(),
            lambda: [b"SET", one(), b"text"] + ([b"PXAT", b"1"] if self.p(0.2) and not self.trackers else []),
            lambda: [b"PEXPIREAT", one(), self.c([b"1", b"5000000000000"])],
            lambda: [b"XGROUP", b"DESTROY", self.key("x"), self.c([b"g", b"h"])],
            lambda: [b"XDEL", self.key("x"), b"%d-0" % self.entry],
            lambda: [b"XTRIM", self.key("x"), b"MAXLEN", b"0"],
            lambda: [b"XSETID", self.key("x"), b"%d-3" % (self.entry + 1)],
            lambda: [b"RESTORE", one(), b"0", self.c(PAYLOADS), b"REPLACE"],
            lambda: [b"LTRIM", self.key("l"), b"1", b"-1"],
            lambda: [self.c([b"FLUSHDB", b"FLUSHALL"] if self.p(0.2) else [b"PING"])],
            lambda: [b"GEORADIUS", self.key("z"), b"0", b"0", b"30000", b"km", b"STORE", self.key("z")],
            lambda: [b"SINTERSTORE", one(), self.key("o")],
            lambda: [b"LINSERT", self.key("l"), b"BEFORE", b"v%d" % self.entry, self.value()],
        ]
        return self.c(other)()

    def any(self):
        return self.waiting() if self.p(0.15) else self.pushing()

    def script(self):
        calls = [b"r[#r+1] = redis.pcall(%s)" % b", ".join(map(literal, self.any())) for _ in range(1 + self.i(4))]
        if self.p(0.1):
            calls.append(self.c([b"error('boom')", b"return redis.call('nosuch')"]))
        return [b"EVAL", b"local r = {}\n" + b"\n".join(calls) + b"\nreturn r", b"0"]

    # steps
    def step(self):
        """One step: what it was."""
        idle = [pair for pair in self.pairs if pair.waits is None]
        waiting = [pair for pair in self.pairs if pair.waits is not None]
        if self.trackers and self.p(0.35):
            self.track()
            return "(track)"
        r = self.rng.random()
        if waiting and r < 0.03:
            self.hang_up(self.c(waiting))
            return "(hang up)"
        pair = self.c(idle)
        if r < 0.30 and len(idle) > 1:
            commands = [self.waiting()]
        elif r < 0.70 or not waiting and r < 0.78:
            commands = [self.pushing()]
        elif r < 0.78:
            other = self.c(waiting if self.p(0.9) else self.pairs)
            how = self.c([[], [b"TIMEOUT"], [b"ERROR"], [b"error"]])
            commands = [[b"CLIENT", b"UNBLOCK", tuple(b"%d" % x for x in other.ids)] + how]
        elif r < 0.80:
            other = self.c([p for p in self.pairs if p is not pair])
            commands = [[b"CLIENT", b"KILL", b"ID", tuple(b"%d" % x for x in other.ids)]]
            self.take(pair, commands)
            self.replace(other)
            return "CLIENT KILL"
        elif r < 0.84:
            commands = [[b"WATCH"] + [self.key(self.c("lzx")) for _ in range(1 + self.i(2))]]
        elif r < 0.92:
            commands = [[b"MULTI"]] + [self.any() for _ in range(1 + self.i(4))] + [[self.c([b"EXEC"] * 9 + [b"DISCARD"])]]
        elif r < 0.98:
            commands = [self.script()]
        else:
            commands = [self.c([[b"SELECT", self.c([b"0", b"1", b"1"])], [b"UNWATCH"], [b"RESET"]])]
        self.take(pair, commands)
        return commands[0][0].decode() if commands[0][0] != b"MULTI" else "EXEC"

    def note(self, pair, commands):
        self.history += ["%d> %s" % (pair.n, show_cmd([x[REF] if type(x) is tuple else x for x in cmd])) for cmd in commands]

    def reading(self):
        """A command that reads keys."""
        t = self.c("lzxso")
        return [self.key(t) if x is None else x for x in self.c(Tracker.READS[t])]

    def track(self):
        """Somebody who is told of changes reads keys, or changes some."""
        tracker = self.c(self.trackers)
        r = self.rng.random()
        if r < 0.6:
            commands = [self.reading() for _ in range(1 + self.i(3))]
        elif r < 0.75:
            # What it has written before it is told of, too (COMPAT.md).
            calls = [self.reading() for _ in range(1 + self.i(3))] + [self.pushing() for _ in range(self.i(3))]
            commands = [[b"MULTI"]] + calls + [[b"EXEC"]]
        elif r < 0.95:
            commands = [self.pushing()]
        else:
            commands = [[b"SELECT", self.c([b"0", b"1"])]]
        self.history += ["tracker %s> %s" % (b" ".join(tracker.mode).decode(), show_cmd(cmd)) for cmd in commands]
        if any(b"SWAPDB" in cmd for cmd in commands):
            for other in self.pairs:
                other.swaps += 1
        self.same("reply", *([c.call(*cmd) for cmd in commands] for c in tracker.conns))
        self.served()

    def take(self, pair, commands):
        """Sends commands of which the last may wait, and compares what comes of it."""
        self.note(pair, commands)
        if any(b"SWAPDB" in part for cmd in commands for part in cmd):
            for other in self.pairs:
                other.swaps += 1
        if commands[0][0] in (b"WATCH", b"EXEC"):
            pair.swaps = 0
        pair.send(commands)
        waits = [self.settle(pair, s, commands) for s in (REF, TARGET)]
        answers = [[pair.read(s) for _ in range(len(commands))] if not waits[s] else "waits" for s in (REF, TARGET)]
        self.same("reply", *answers)
        pair.waits = commands[-1] if waits[REF] else None
        self.served()

    def settle(self, pair, s, commands):
        """Until a client was answered or waits: whether it waits."""
        end = time.time() + PATIENCE
        pause = 0.0002
        while True:
            if pair.has_news(s):
                return False
            line = self.control[s].call("CLIENT", "LIST", "ID", str(pair.ids[s]))
            flags = dict(x.partition(b"=")[::2] for x in line.split()).get(b"flags", b"")
            if b"b" in flags and not pair.has_news(s):
                if commands[-1][0] in MAY_WAIT and not self.is_short(commands[-1]):
                    return True
            elif time.time() > end:
                raise Mismatch("no answer from the %s" % ("reference", "target")[s], None, None)
            select.select([pair.conns[s].sock], [], [], pause)
            pause = min(2 * pause, 0.02)

    @staticmethod
    def is_short(cmd):
        """Whether its time is over soon."""
        return any(x in (b"0.001", b"0.02") for x in cmd) or b"BLOCK" in cmd and cmd[cmd.index(b"BLOCK") + 1] in (b"1", b"5")

    def waiters(self, s):
        lines = self.control[s].call("CLIENT", "LIST").splitlines()
        found = (dict(x.partition(b"=")[::2] for x in line.split()) for line in lines)
        return {int(x[b"id"]) for x in found if b"b" in x[b"flags"]}

    def served(self):
        """Compares what those have got that are served by the last step, and that nobody else has got anything."""
        waiting = [pair for pair in self.pairs if pair.waits is not None]
        self.moved = False
        if waiting:
            still = self.waiters(REF)
            for pair in waiting:
                if pair.ids[REF] in still:
                    continue
                self.moved |= pair.waits[0] in (b"BLMOVE", b"BRPOPLPUSH")
                self.same("what %d gets" % pair.n, pair.read(REF), pair.read(TARGET))
                pair.waits = None
            for pair in waiting:
                if pair.waits is not None and pair.has_news(TARGET):
                    raise Mismatch("what %d gets" % pair.n, "waits", pair.read(TARGET))
        of = [collections.defaultdict(list), collections.defaultdict(list)]
        for s, events in enumerate(self.events):
            for event in events.take():
                of[s][event.rpartition(b" ")[2]].append(event)
        for key, events in list(of[REF].items()):
            of[REF][key] = self.swept(events, of[TARGET].get(key, []), self.last_events[key])
            if not of[REF][key]:
                del of[REF][key]
        self.same("events", *(sorted(x.items()) for x in of))
        for n, tracker in enumerate(self.trackers):
            self.same("told to tracker %d, %s" % (n, b" ".join(tracker.mode).decode()), *tracker.told())

    @staticmethod
    def swept(events, told, last):
        """The events of a key without each `del` by which Redis tells of one put with a time that is past, where a STORE without a result
        replaces it, or somebody deletes it, before the sweep has come: the clock decides. Tarn always says `expired`, which is not
        compared, as Redis does from the sweep on. `last` is the last event in each database, between which SWAPDB may have moved it."""
        kept = []
        for event in events:
            db, what, _ = event.split(b" ", 2)
            unswept = what == b"del" and b"expire" in last.values() and told[len(kept) :][:1] != [event]
            last[db] = what
            if not unswept:
                kept.append(event)
        return kept

    def meets_odd_keys(self, pair):
        """Whether a client that waits has what it waits for, as Redis wakes nobody when a STORE replaces a key of another kind; or a key
        of another kind in another shard, at which Tarn does not look."""
        name = pair.waits[0]
        if name.startswith(b"X"):
            return False  # no STORE makes streams, and one may be there without new entries
        kind = b"zset" if b"Z" in name else b"list"
        c = resp.Conn(*self.servers[REF], timeout=PATIENCE)
        kinds = [c.call("TYPE", k) for db in (0, 1) if c.call("SELECT", str(db)) for k in pair.waits[1:]]
        c.close()
        return kind in kinds or self.opt.spread and any(x not in (kind, b"none") for x in kinds)

    def hang_up(self, pair):
        self.history.append("%d> (hangs up)" % pair.n)
        pair.close()
        self.replace(pair)

    def replace(self, pair):
        """Another client in the place of one that has left: it comes when both servers know that."""
        for s in (REF, TARGET):
            end = time.time() + PATIENCE
            while self.control[s].call("CLIENT", "LIST", "ID", str(pair.ids[s])):
                if time.time() > end:
                    raise Mismatch("a client that has left is still there", *pair.ids)
                time.sleep(0.001)
        pair.close()
        self.pairs[pair.n] = self.pair(pair.n)
        self.served()

    def is_known(self, mismatch):
        """Whether COMPAT.md tells of it: the epoch ends, all the same."""
        aborted = [type(x) is list and x and isinstance(x[-1], resp.Nil) for x in (mismatch.a, mismatch.b)]
        if mismatch.what == "reply" and any(aborted) and any(pair.swaps for pair in self.pairs):
            return True
        # Redis looks at the keys of a swapped database in an order of chance.
        swapped = any("SWAPDB" in x for x in list(self.history)[-5 if "EXEC" in self.history[-1] else -1 :])
        if mismatch.what != "reply" and swapped:
            return True
        if mismatch.what.startswith("what ") and isinstance(mismatch.a, resp.Error) and mismatch.a.startswith(b"WRONGTYPE"):
            pair = self.pairs[int(mismatch.what.split()[1])]
            if self.opt.spread and pair.waits[0] == b"XREAD":
                return True  # it looks at the streams of those shards only that are at hand
        if mismatch.what == "events" and self.opt.spread and self.moved:
            # Who moves an element to a shard that is not at hand does so after those for whom all is; a list may be empty in between,
            # and is as full at the end.
            def of_elements(told):
                words = [[event.split(b" ")[1] for event in x] for _, x in told]
                held = [of_key.count(b"new") - of_key.count(b"del") for of_key in words]
                return held, [(key, sorted(e for e in x if e.split(b" ")[1] not in (b"new", b"del"))) for key, x in told]

            return of_elements(mismatch.a) == of_elements(mismatch.b)
        if mismatch.a == "waits" and isinstance(mismatch.b, resp.Error) and mismatch.b.startswith(b"WRONGTYPE"):
            pair = self.pairs[int(mismatch.what.split()[1])] if mismatch.what.startswith("what ") else None
            if pair and pair.waits[0] == b"XREAD":
                return True  # any change of one of its streams has it look at all
        return any(self.meets_odd_keys(pair) for pair in self.pairs if pair.waits is not None)

    def same(self, what, a, b):
        if not (a == b if "waits" in (a, b) else repr(a) == repr(b)):
            raise Mismatch(what, a, b)

    def counters(self):
        """INFO's counters of waiters."""
        names = (b"blocked_clients", b"total_blocking_keys", b"total_blocking_keys_on_nokey")
        end = time.time() + 2
        while True:
            a, b = ({n: v for n, v in (x.partition(b":")[::2] for x in c.call("INFO", "clients").splitlines()) if n in names}
                    for c in self.control)
            if a == b:
                return
            if time.time() > end:
                raise Mismatch("INFO", a, b)
            time.sleep(0.01)

    def leave(self):
        """Everybody leaves, and both servers know it."""
        for x in self.pairs + self.events + self.trackers:
            x.close()
        end = time.time() + PATIENCE
        while any(len(c.call("CLIENT", "LIST").splitlines()) > 1 for c in self.control) and time.time() < end:
            time.sleep(0.001)

    def end(self):
        """What is left of the key spaces: differences."""
        diffs = difffuzz.state_diff(*self.control, (0, 1), True)[0]
        for c in self.control:
            c.close()
        return diffs


# Of a list, a sorted set, and a stream with a group: filled in from the reference.
PAYLOADS = []


def payloads(opt):
    c = resp.Conn(*difffuzz.addr(opt.ref), timeout=PATIENCE)
    c.call("FLUSHALL")
    for cmd in ("RPUSH l r1 r2", "ZADD z 1 r1 2 r2", "XADD x 1-1 f v", "XGROUP CREATE x g 0", "SET s text"):
        c.call(*cmd.split())
    PAYLOADS[:] = [c.call("DUMP", k) for k in "lzxs"]
    c.close()


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--ref", required=True)
    ap.add_argument("--target", required=True)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--count", type=int, default=10000)
    ap.add_argument("--epoch", type=int, default=500)
    ap.add_argument("--clients", type=int, default=7)
    ap.add_argument("--examples", type=int, default=5)
    ap.add_argument("--spread", action="store_true")
    ap.add_argument("--track", action="store_true")
    ap.add_argument("--stop-first", action="store_true")
    opt = ap.parse_args()
    payloads(opt)
    ran, bad = collections.Counter(), collections.Counter()
    done = epoch = served = shown = known = 0
    begun = time.time()
    while done < opt.count:
        crowd = Crowd(opt, opt.seed * 1000003 + epoch)
        failed, is_whole = None, False
        size = min(opt.epoch, opt.count - done)
        for n in range(size):
            before = sum(p.waits is not None for p in crowd.pairs)
            try:
                ran[crowd.step()] += 1
                if n % 25 == 0:
                    crowd.counters()
            except Mismatch as e:
                failed = e
                if crowd.is_known(e):
                    known += 1
                    failed = None
                    break
            except (OSError, resp.ProtocolError) as e:
                failed = Mismatch("%s: %s" % (type(e).__name__, e), None, None)
            done += 1
            served += max(0, before - sum(p.waits is not None for p in crowd.pairs))
            if failed:
                break
        else:
            is_whole = True
        history = list(crowd.history) + ["%d waits: %s" % (p.n, show_cmd(p.waits)) for p in crowd.pairs if p.waits is not None]
        try:
            crowd.leave()
            diffs = crowd.end() if is_whole else []
        except (OSError, resp.ProtocolError) as e:
            failed, diffs = Mismatch("%s: %s" % (type(e).__name__, e), None, None), []
        if diffs:
            failed = Mismatch("state: db%d %r %s" % diffs[0][:3], *diffs[0][3:])
        if failed:
            bad[failed.what.rstrip("0123456789 ")] += 1
            if shown < opt.examples:
                shown += 1
                print("epoch %d: %s\n      ref    %s\n      target %s" % (epoch, failed.what, *show_both(failed.a, failed.b, 600)))
                print("".join("    %s\n" % line[:400] for line in history[-24:]))
            if opt.stop_first:
                break
        epoch += 1
    primary = sum(bad.values())
    print("TOTAL %d steps, %d epochs, at least %d clients served or ended, %.1f s; cut short by what is known %d; mismatches %d %s" % (
        done, epoch, served, time.time() - begun, known, primary, dict(bad)))
    print("      " + ", ".join("%s %d" % x for x in ran.most_common()))
    return 1 if primary else 0


if __name__ == "__main__":
    sys.exit(main())
