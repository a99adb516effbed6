"""Scripts and libraries over random commands, for difffuzz.py: what they are given and give back is the same on every server."""

# Tells a value with its types, whatever the order of a table.
DESCRIBE = b"""local function d(v)
 if type(v) ~= 'table' then return type(v) .. ':' .. tostring(v) end
 local names, of = {}, {}
 for k in pairs(v) do names[#names + 1] = type(k) .. tostring(k); of[names[#names]] = k end
 table.sort(names)
 for i, n in ipairs(names) do names[i] = n .. '=' .. d(v[of[n]]) end
 return '{' .. table.concat(names, ',') .. '}'
end
"""

# The sign of a zero is not hashed: a score has none here.
RESULTS = [
    b"r", b"r", b"r", b"r", b"r[1]", b"#r", b"d(r)", b"3.7", b"-0.5", b"true", b"false", b"nil", b"'text'", b"{1,2,nil,4}", b"{}",
    b"{ok='fine'}", b"{err='MINE went wrong'}", b"{err='wrong'}", b"{double=1.5}", b"{map={a=1}}", b"{set={x=true}}", b"{r,{r}}",
    b"redis.error_reply('OWN text')", b"redis.error_reply('-OWN text')", b"redis.status_reply('fine')", b"{big_number='123456789012345678901234567890'}",
    b"{verbatim_string={format='txt',string='x'}}", b"2^53", b"1e300", b"'a\\r\\nb'", b"{err='a\\r\\nb'}", b"redis.sha1hex((d(r):gsub('%-0', '0')))",
    b"cjson.encode(#r)", b"{1,{err='in it'},{ok='in it'},true,false}", b"d(r[1])",
]

ENDS = [b"error('boom')", b"error({err='TABLE boom'})", b"redis.call()", b"redis.call('nosuch')", b"redis.call('get')", b"local x = nosuch",
        b"nosuch = 1", b"redis.call('set', {}, 1)", b"return redis.call('incr', KEYS[1])", b"error()", b"error(nil)", b"redis.setresp(4)",
        b"redis.log(redis.LOG_DEBUG)", b"return redis.pcall('nosuch')", b"return redis.pcall('lpush', 'q')", b"return error_reply"]

FLAGS = [b"", b" flags=no-writes", b" flags=allow-oom", b" flags=no-writes,allow-stale", b" flags=no-cluster", b" flags=nosuch", b" name=x", b" flags="]

# Words of commands that set a time.
TIMES = [b"EXPIRE", b"SETEX", b"EXAT", b"PXAT"]

# The names that library() gives.
LIBRARIES = [b"lib0", b"lib1", b"lib2", b"x"]


def literal(text):
    """A Lua string of these bytes."""
    return b'"' + b"".join(b"%c" % x if 32 <= x < 127 and x not in b'"\\' else b"\\%03d" % x for x in text) + b'"'


class Writer:
    """Writes the body of one script. `one` gives a command, `is_key` tells its keys, `keys` and `args` are what the script is given."""

    def __init__(self, g, one, is_key):
        self.g, self.one, self.is_key = g, one, is_key
        self.keys, self.args = [], []
        self.declares = g.p(0.6)
        # A function is called with other arguments than it was written with.
        self.is_function = False

    def argument(self, x, fixed):
        if self.declares and self.is_key(x):
            if x not in self.keys:
                self.keys.append(x)
            return b"KEYS[%d]" % (self.keys.index(x) + 1)
        if self.g.p(0.15) and not fixed:
            self.args.append(x)
            return b"ARGV[%d]" % len(self.args)
        if x.isdigit() and not x.startswith(b"0") and len(x) < 9 and self.g.p(0.5):
            return x
        return literal(x)

    def command(self):
        words = self.one()
        # No argument becomes a time that is soon: what expires meanwhile is not the same on two servers.
        upper = [x.upper() for x in words]
        fixed = self.is_function and any(x in (b"EX", b"PX") or any(t in x for t in TIMES) for x in upper)
        return b", ".join([literal(x) if i == 0 else self.argument(x, fixed) for i, x in enumerate(words)])

    def statement(self):
        k, g = self.g.i(10), self.g
        if k < 3:
            return b"r[#r+1] = redis.call(%s)" % self.command()
        if k < 5:
            return b"r[#r+1] = redis.pcall(%s)" % self.command()
        if k < 7:
            return b"r[#r+1] = d(redis.pcall(%s))" % self.command()
        if k == 7:
            return b"local ok, e = pcall(redis.call, %s); r[#r+1] = d(ok); r[#r+1] = d(e)" % self.command()
        if k == 8:
            return g.c([b"redis.setresp(3)", b"redis.setresp(3)", b"redis.setresp(2)", b"r[#r+1] = redis.error_reply('one of many')"])
        return b"for i = 1, %d do local v = redis.pcall(%s); if type(v) == 'table' and v.err then break end; r[#r+1] = d(v) end" % (
            1 + g.i(3), self.command())

    def body(self):
        g = self.g
        lines = [self.statement() for _ in range(1 + g.i(4))]
        lines.append(g.c(ENDS) if g.p(0.08) else b"return " + g.c(RESULTS))
        return b"local r = {}\n" + b"\n".join(lines)


def numbered(g, keys, args):
    """Keys and arguments with the number of the keys, now and then a wrong one."""
    n = b"%d" % len(keys) if g.p(0.97) else g.c([b"-1", b"abc", b"99", b"", b"1.5"])
    return [n] + keys + args


def script(g, one, is_key):
    """An EVAL, or EVAL_RO."""
    w = Writer(g, one, is_key)
    text = DESCRIBE + w.body()
    if g.p(0.15):
        text = b"#!" + g.c([b"lua"] * 9 + [b"js", b""]) + g.c(FLAGS) + b"\n" + text
    return [b"EVAL_RO" if g.p(0.1) else b"EVAL", text] + numbered(g, w.keys, w.args)


def library(g, one, is_key):
    """A FUNCTION LOAD of a library of one of a few names."""
    n = g.i(3)
    lines = [DESCRIBE]
    for i in range(1 + g.i(3)):
        w = Writer(g, one, is_key)
        w.declares, w.is_function = False, True
        text = b"function(KEYS, ARGV)\n%s\nend" % w.body()
        # Of several names that others have, Redis tells of one by chance.
        name = b"f%d%d" % (n, i) if g.p(0.95) else b"f00"
        flags = g.c([b"", b"", b"'no-writes'", b"'allow-oom', 'no-writes'", b"'allow-stale'"])
        if g.p(0.5):
            lines.append(b"redis.register_function('%s', %s)" % (name, text))
        else:
            lines.append(b"redis.register_function{function_name='%s', callback=%s, flags={%s}}" % (name, text, flags))
    if g.p(0.05):
        lines.append(g.c([b"error('while loading')", b"redis.call('get', 'x')", b"x = 1", b"syntax error(", b"redis.register_function('bad name', d)",
                          b"redis.register_function('g')", b"redis.register_function{function_name='h', callback=d, flags={'nosuch'}}"]))
    head = b"#!lua name=lib%d\n" % n if g.p(0.97) else g.c([b"", b"#!lua\n", b"#!lua name=a-b\n", b"#!js name=x\n", b"#!lua name=x flags=y\n"])
    return [b"FUNCTION", b"LOAD"] + ([b"REPLACE"] if g.p(0.8) else []) + [head + b"\n".join(lines)]


def function(g, keys, values):
    """An FCALL, or FCALL_RO."""
    name = b"f%d%d" % (g.i(3), g.i(3)) if g.p(0.97) else g.c([b"nosuch", b"", b"F00"])
    return [b"FCALL_RO" if g.p(0.2) else b"FCALL", name] + numbered(g, keys, values)
