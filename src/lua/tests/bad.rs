//! Scripts that mean harm, or look like it: each ends by itself, or at the end of its steps, within its bytes.

use super::*;

/// How a bad script has to end.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    /// It would go on for ever.
    Fuel,
    /// With an error of which this is a part; on its own or caught by the script and returned.
    Error(&'static str),
    /// It cannot catch that its bytes are used up.
    Memory,
    Done,
}

const MAX_BYTES: usize = 32 << 20;
/// Steps of one run, and how many runs a script gets.
const FUEL: u64 = 200_000;
const RUNS: u64 = 2000;
const RUNS_OF_ENDLESS: u64 = 20;
/// What one piece of work may overdraw: as much as copying all bytes a machine may have.
const OVERDRAFT: u64 = 8_000_000;

fn check(name: &str, source: &[u8], end: End) {
    let limits = Limits { max_bytes: MAX_BYTES, max_string: MAX_BYTES / 2, max_source: 8 << 20 };
    let started = std::time::Instant::now();
    let chunk = match Chunk::compile(source, "@user_script", &limits) {
        Ok(chunk) => chunk,
        Err(text) => {
            let text = String::from_utf8_lossy(&text).into_owned();
            let End::Error(part) = end else { panic!("{name}: does not compile: {text}") };
            assert!(text.contains(part), "{name}: {text}");
            return;
        }
    };
    let mut machine = machine(limits);
    assert!(machine.start(&chunk), "{name}");
    let (mut used, mut reached) = (0, End::Fuel);
    for _ in 0..if end == End::Fuel { RUNS_OF_ENDLESS } else { RUNS } {
        let outcome = machine.run(FUEL);
        let spent = machine.used() - used;
        used = machine.used();
        assert!(spent < FUEL + OVERDRAFT, "{name}: {spent} steps in one run");
        match outcome {
            Outcome::OutOfFuel => continue,
            Outcome::Call(_) => machine.answer(&[]),
            Outcome::Done => {
                reached = End::Done;
                if let (End::Error(part), Some(value)) = (end, machine.values().first().copied()) {
                    let mut text = Vec::new();
                    show(&machine, value, &mut text);
                    let text = String::from_utf8_lossy(&text).into_owned();
                    assert!(text.contains(part), "{name}: {text}");
                    reached = end;
                }
                break;
            }
            Outcome::Failed(failure) => {
                reached = End::Memory;
                if let Some(value) = failure.value {
                    let mut text = Vec::new();
                    show(&machine, value, &mut text);
                    let text = String::from_utf8_lossy(&text).into_owned();
                    let End::Error(part) = end else { panic!("{name}: {text}") };
                    assert!(text.contains(part), "{name}: {text}");
                    reached = end;
                }
                break;
            }
        }
    }
    assert_eq!(reached, end, "{name}: {used} steps");
    assert!(machine.peak_bytes() <= MAX_BYTES, "{name}: {} bytes", machine.peak_bytes());
    if std::env::var("LUA_BAD_TIMES").is_ok() {
        eprintln!("{:8.1} ms {:10} steps {name}", started.elapsed().as_secs_f64() * 1e3, machine.used());
    }
    // Whatever it was, the machine is as good as new afterwards.
    machine.reset();
    let next =
        Chunk::compile(b"local t = {} for i = 1, 100 do t[i] = i .. '' end return #table.concat(t)", "@next", &limits);
    assert!(machine.start(&next.unwrap()));
    assert!(matches!(machine.run(1_000_000), Outcome::Done), "{name}: what follows fails");
    assert_eq!(machine.values(), [Value::Number(192.0)], "{name}");
}

#[test]
fn endless_loops_end_with_their_steps() {
    for (name, source) in [
        ("plain", "while true do end"),
        ("repeat", "repeat until false"),
        ("for", "for i = 1, 1/0 do end"),
        ("goto by tail call", "local function f() return f() end f()"),
        ("pcall", "while true do pcall(function() while true do end end) end"),
        ("pcall of errors", "while true do pcall(error, 'x') end"),
        ("pcall that eats the end", "while true do pcall(function() while true do local x = {} end end) end"),
        ("coroutine", "coroutine.wrap(function() while true do end end)()"),
        ("coroutines without end", "local function f() return coroutine.wrap(f)() end while true do pcall(f) end"),
        ("yield", "local c = coroutine.wrap(function() while true do coroutine.yield() end end) while true do c() end"),
        ("comparator", "local t = {} for i = 1, 50 do t[i] = i end table.sort(t, function() while true do end end)"),
        (
            "sort of inconsistent ones",
            "local t = {} for i = 1, 50 do t[i] = i end while true do pcall(table.sort, t, function() return true end) end",
        ),
        ("__index", "local t = setmetatable({}, {__index = function() while true do end end}) return t.x"),
        ("__lt", "local t = setmetatable({}, {__lt = function() while true do end end}) return t < t"),
        ("__concat", "local t = setmetatable({}, {__concat = function() while true do end end}) return t .. t"),
        ("__tostring", "return tostring(setmetatable({}, {__tostring = function() while true do end end}))"),
        ("__call", "return setmetatable({}, {__call = function() while true do end end})()"),
        ("gsub callback", "return ('x'):rep(100):gsub('x', function() while true do end end)"),
        ("gsub table", "return ('x'):gsub('x', setmetatable({}, {__index = function() while true do end end}))"),
        ("iterator", "for x in function() return 1 end do end"),
        ("next", "local t = {1} while true do for k in pairs(t) do end end"),
        ("load", "while true do load(function() return nil end) end"),
        ("load reader", "load(function() while true do end end)"),
        ("loadstring", "while true do loadstring('return 1')() end"),
        ("foreach", "table.foreach({1}, function() while true do end end)"),
        ("xpcall handler", "xpcall(error, function() while true do end end)"),
        ("insert far below", "table.insert({}, -2147483648, 1)"),
        (
            "keys that collide",
            "local t = {} for i = 1, 1e5 do t[2 ^ 17 * (1 + (i * 2 ^ 32 + 4294967295 - i) / 2 ^ 52)] = i end",
        ),
        ("garbage", "while true do local t = {{}, {}, 'x' .. math.random()} end"),
        ("garbage strings", "local s = ('x'):rep(1e6) while true do local t = s .. math.random() end"),
        (
            "json of sparse parts",
            "local b = {} for i = 1, 1e5 do b[i] = i end for i = 1, 1e5 do b[i] = nil end local t = {} for i = 1, 1e5 do t[i] = b end return #cjson.encode(t)",
        ),
    ] {
        check(name, source.as_bytes(), End::Fuel);
    }
}

#[test]
fn patterns_cost_steps_and_no_stack() {
    for (name, source, end) in [
        ("backtracking", "return ('a'):rep(40):find(('a?'):rep(40) .. ('a'):rep(41))", End::Fuel),
        ("nested repetition", "return ('a'):rep(200):find(('a*'):rep(20) .. 'b')", End::Fuel),
        ("lazy repetition", "return ('a'):rep(200):find(('.-'):rep(20) .. 'b')", End::Fuel),
        ("long optional", "local p = ('a?'):rep(1e5) return p:find(p)", End::Done),
        ("deep recursion", "return ('a'):rep(3e5):find(('.-'):rep(1) .. 'b')", End::Fuel),
        ("many singles", "return ('a'):rep(1e5):find(('a'):rep(1e5) .. 'b')", End::Done),
        ("balance", "return ('('):rep(1e5):find('%b()')", End::Fuel),
        ("balanced", "return (('('):rep(5e4) .. (')'):rep(5e4)):find('%b()')", End::Done),
        ("long set", "return ('a'):rep(1e4):find('[' .. ('b'):rep(2e5) .. ']')", End::Fuel),
        ("repeated set", "return ('a'):rep(1e6):find('[' .. ('b'):rep(1e6) .. 'a]*')", End::Fuel),
        ("repeated set to the end", "return ('a'):rep(1e5):find('^[' .. ('b'):rep(100) .. 'a]+$')", End::Done),
        ("long patterns", "local p = ('a'):rep(1e6) .. '%' while true do ('b'):find(p) end", End::Fuel),
        ("long replacements", "local s = ('a'):rep(1e6) while true do ('b'):gsub('c', s) end", End::Fuel),
        ("gsub of everything", "return #(('x'):rep(1e5):gsub('.', '%0%0'))", End::Done),
        ("gsub bomb", "return ('x'):rep(1e5):gsub('x', ('y'):rep(1e5))", End::Error("too large")),
        (
            "gsub bomb by function",
            "return ('x'):rep(1e5):gsub('x', function() return ('y'):rep(1e5) end)",
            End::Error("too large"),
        ),
        ("gsub bomb by captures", "return ('x'):rep(1e4):gsub('.*', ('%0'):rep(1e4))", End::Error("too large")),
        ("gmatch", "local n = 0 for _ in ('x'):rep(1e5):gmatch('()') do n = n + 1 end return n", End::Done),
        ("too many captures", "return ('x'):find(('()'):rep(100))", End::Error("too many captures")),
        ("many opened", "return ('x'):find(('('):rep(1e5))", End::Error("too many captures")),
        ("set without end", "return ('x'):find('[' .. ('a'):rep(1e6))", End::Error("missing ']'")),
        ("frontier", "return ('a'):rep(1e5):find('%f[' .. ('b'):rep(1e5) .. ']')", End::Fuel),
    ] {
        check(name, source.as_bytes(), end);
    }
}

#[test]
fn bombs_stay_within_their_bytes() {
    for (name, source, end) in [
        ("rep", "return ('x'):rep(1e9)", End::Error("too large")),
        ("rep of nothing", "return #(''):rep(2^31 - 1)", End::Done),
        ("rep of rep", "local s = 'x' while true do s = s:rep(2) end", End::Error("too large")),
        ("doubling", "local s = 'x' while true do s = s .. s end", End::Error("overflow")),
        (
            "doubling in pcall",
            "local s = 'x' pcall(function() while true do s = s .. s end end) local t = {} while true do t[#t + 1] = s:sub(#t + 2) end",
            End::Memory,
        ),
        ("upper", "local s, t = ('x'):rep(1e6), {} for i = 1, 1e9 do t[i] = (s .. i):upper() end", End::Memory),
        (
            "format",
            "local s = ('x'):rep(1e6) return string.format(('%s'):rep(100), s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s)",
            End::Error(""),
        ),
        (
            "format of widths",
            "return #string.format(('%99d'):rep(1e5), unpack({}, 1, 7000))",
            End::Error("bad argument"),
        ),
        ("format of quotes", "return #string.format('%q', ('\\0'):rep(1e7))", End::Error("too large")),
        (
            "concat",
            "local s, t = ('x'):rep(1e6), {} for i = 1, 100 do t[i] = s end return table.concat(t)",
            End::Error("too large"),
        ),
        (
            "concat by separator",
            "local t = {} for i = 1, 1e4 do t[i] = '' end return table.concat(t, ('x'):rep(1e5))",
            End::Error("too large"),
        ),
        ("tables", "local t = {} while true do t = {t} end", End::Memory),
        (
            "tables in pcall",
            "while true do pcall(function() local t = {} while true do t = {t} end end) end",
            End::Memory,
        ),
        ("a table", "local t = {} for i = 1, 1e9 do t[i] = i end", End::Memory),
        ("a table of strings", "local t = {} for i = 1, 1e9 do t['k' .. i] = i end", End::Memory),
        ("closures", "local t = {} while true do local x t[#t + 1] = function() return x end end", End::Memory),
        ("coroutines", "local t = {} while true do t[#t + 1] = coroutine.create(function() end) end", End::Memory),
        (
            "suspended coroutines",
            "local t = {} while true do local c = coroutine.wrap(function() coroutine.yield() end) c() t[#t + 1] = c end",
            End::Memory,
        ),
        ("gmatch iterators", "local t = {} while true do t[#t + 1] = ('x'):gmatch('x') end", End::Memory),
        ("loaded chunks", "local t = {} while true do t[#t + 1] = loadstring('return ' .. #t) end", End::Memory),
        ("load without end", "return load(function() return 'x = 1 ' end)", End::Done),
        ("load of a long source", "return select(2, loadstring(('x = 1 '):rep(2e6)))", End::Error("too long")),
        ("unpack", "return unpack({}, 1, 1e8)", End::Error("too many results")),
        ("unpack of all", "return unpack({}, -2^31, 2^31 - 1)", End::Error("too many results")),
        ("byte", "return ('x'):rep(1e6):byte(1, -1)", End::Error("too long")),
        ("insert far", "local t = {} table.insert(t, 2^31 - 1, 1) return #t", End::Done),
        ("varargs", "local function f(...) return f(1, ...) end f()", End::Fuel),
        ("recursion with values", "local function f(...) return (f(1, 2, 3, ...)) end f()", End::Memory),
        (
            "json laughs",
            "local t = {} for i = 1, 30 do t = {t, t} end return #cjson.encode(t)",
            End::Error("too large"),
        ),
        ("json text", "local s = ('x'):rep(4e6) return cjson.encode({s, s, s, s, s, s})", End::Memory),
        ("json of lists", "return cjson.decode('[' .. ('[],'):rep(2e6) .. '1]')", End::Memory),
        ("msgpack of lists", "return cmsgpack.unpack('\\221\\255\\255\\255\\255' .. ('\\144'):rep(4e6))", End::Memory),
        (
            "msgpack text",
            "local s, t = ('x'):rep(1e6), {} for i = 1, 100 do t[i] = s end return cmsgpack.pack(t)",
            End::Error("too large"),
        ),
        (
            "msgpack text, again and again",
            "local s, t = ('x'):rep(1e6), {} for i = 1, 100 do t[i] = s end \
             for i = 1, 5 do assert(not pcall(cmsgpack.pack, t)) end",
            End::Done,
        ),
        (
            "msgpack laughs",
            "local t = {1} for i = 1, 15 do t = {t, t, t, t} end return cmsgpack.pack(t)",
            End::Error("too large"),
        ),
        ("struct", "return struct.pack(('c0'):rep(100), ('x'):rep(1e6))", End::Error("bad argument")),
        ("struct numbers", "return struct.unpack(('b'):rep(1e5), ('x'):rep(1e5))", End::Error("too many results")),
        ("cjson.new", "local t = {} while true do t[#t + 1] = cjson.new() end", End::Memory),
    ] {
        check(name, source.as_bytes(), end);
    }
}

/// What goes through a long string costs steps by its length, also where it makes nothing of it.
#[test]
fn long_strings_cost_steps() {
    for (name, each) in [
        ("numbers", "local n = s + 0"),
        ("numbers as arguments", "local n = ('x'):sub(s)"),
        ("numbers in a base", "local n = tonumber(s, 2)"),
        ("sources", "loadstring(s)"),
        ("names of sources", "loadstring('', s)"),
        ("names of readers", "load(function() end, s)"),
        ("digits", "for _ = 1, 100 do string.format('%99.99f', 1e300) end"),
    ] {
        let source = format!("local s = ('1'):rep(2e6) while true do {each} end");
        check(name, source.as_bytes(), End::Fuel);
    }
}

/// Half of what threads have, in a build without optimisation.
const STACK_BYTES: usize = 1 << 20;

#[test]
fn depth_costs_bytes_and_no_stack() {
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
    thread.spawn(nested_scripts).unwrap().join().unwrap();
}

fn nested_scripts() {
    let deep =
        |open: &str, inner: &str, close: &str, n: usize| [open.repeat(n), inner.into(), close.repeat(n)].concat();
    let many = |part: &str, n: usize| part.repeat(n);
    for (name, source, end) in [
        ("calls", "local function f() f() end f()".to_string(), End::Error("stack overflow")),
        ("calls in pcall", "local function f() return pcall(f) end return select(2, f())".into(), End::Done),
        ("pcall of pcall", "local function f() pcall(f) end f() return 'x'".into(), End::Done),
        (
            "__index",
            "local t t = setmetatable({}, {__index = function(_, k) return t[k + 1] end}) return t[1]".into(),
            End::Error("C stack overflow"),
        ),
        (
            "__index tables",
            "local t = {} for i = 1, 200 do t = setmetatable({}, {__index = t}) end return t.x".into(),
            End::Error("loop in gettable"),
        ),
        (
            "own __index",
            "local t = {} t.__index = t setmetatable(t, t) return t.x".into(),
            End::Error("loop in gettable"),
        ),
        (
            "own __newindex",
            "local t = {} t.__newindex = t setmetatable(t, t) t.x = 1".into(),
            End::Error("loop in settable"),
        ),
        (
            "__tostring",
            "local t t = setmetatable({}, {__tostring = function() return tostring(t) end}) return tostring(t)".into(),
            End::Error("stack overflow"),
        ),
        ("sort in sort", "local function f() table.sort({1, 2}, f) end f()".into(), End::Error("stack overflow")),
        ("gsub in gsub", "local function f() return ('x'):gsub('x', f) end f()".into(), End::Error("stack overflow")),
        (
            "coroutine in coroutine",
            "local function f() coroutine.wrap(f)() end f()".into(),
            End::Error("stack overflow"),
        ),
        (
            "loadstring in loadstring",
            "S = nil local s = 'local s = ... return loadstring(s)(s)' return loadstring(s)(s)".into(),
            End::Error("readonly"),
        ),
        (
            "loadstring for ever",
            "local s = 'local s = ... return (loadstring(s)(s))' return loadstring(s)(s)".into(),
            End::Error("stack overflow"),
        ),
        (
            "parentheses",
            deep("return ", "", "", 1) + &deep("(", "1", ")", 100_000),
            End::Error("too many syntax levels"),
        ),
        ("tables", deep("return ", "", "", 1) + &deep("{", "", "}", 100_000), End::Error("too many syntax levels")),
        (
            "functions",
            deep("return ", "", "", 1) + &deep("function() return ", "1", " end", 50_000),
            End::Error("too many syntax levels"),
        ),
        ("blocks", deep("do ", "", " end", 100_000), End::Error("too many syntax levels")),
        ("ifs", deep("if x then ", "", " end", 100_000), End::Error("too many syntax levels")),
        ("not", format!("return {} 1", many("not ", 100_000)), End::Error("too many syntax levels")),
        ("minus", format!("return {} 1", many("- ", 100_000)), End::Error("too many syntax levels")),
        ("power", format!("return 1{}", many("^1", 100_000)), End::Error("too many syntax levels")),
        ("concat", format!("return 1{}", many(" .. 1", 100_000)), End::Error("too many syntax levels")),
        ("sum", format!("local a = 1 return a{}", many("+1", 300_000)), End::Done),
        ("folded sum", format!("return 1{}", many("+1", 300_000)), End::Done),
        ("and", format!("local a = 1 return a{}", many(" and a", 100_000)), End::Error("control structure too long")),
        ("calls in a chain", format!("local f f = function() return f end return f{}", many("()", 100_000)), End::Done),
        ("fields in a chain", format!("local a = {{}} a.a = a return a{} == a", many(".a", 100_000)), End::Done),
        (
            "elseif",
            format!("local x if x then {} end", many("elseif x then ", 200_000)),
            End::Error("control structure too long"),
        ),
        ("few elseif", format!("local x if x then {} end", many("elseif x then ", 30_000)), End::Done),
        ("lines", many("local x = 1 x = 2\n", 150), End::Done),
        ("a million lines", many("\n", 1_000_000), End::Done),
        ("statements", format!("local x {}", many("x=1\n", 500_000)), End::Done),
        ("too many locals", many("local x = 1 ", 300), End::Error("200 local variables")),
        ("targets", format!("local a {}a = 1", many("a,", 10_000)), End::Error("variables in assignment")),
        ("constants", (0..300_000).map(|n| format!("x={n}\n")).collect(), End::Error("constant table overflow")),
        (
            "upvalues",
            format!(
                "{} return function() return {} end",
                (0..100).map(|n| format!("local a{n} = {n} ")).collect::<String>(),
                (0..100).map(|n| format!("a{n} + ")).collect::<String>() + "0"
            ),
            End::Error("more than 60 upvalues"),
        ),
        ("registers", format!("local x return {{{}}}", many("x,", 100_000)), End::Done),
        ("arguments", format!("local function f() end f({}1)", many("1,", 300)), End::Error("too complex")),
        ("elements", format!("return #{{{}}}", many("1,", 200_000)), End::Done),
        (
            "globals in deep functions",
            format!("local x {}{}{}", many("local function f() local x ", 60), many("y=1 ", 10), many(" end", 60)),
            End::Done,
        ),
        ("a long string", format!("return #'{}'", many("x", 4_000_000)), End::Done),
        ("a long comment", format!("--[==[{}]==] return 1", many("]", 4_000_000)), End::Done),
        ("json", "return cjson.decode(('['):rep(1e6))".into(), End::Error("too many nested")),
        ("json objects", "return cjson.decode(('{\"a\":'):rep(1e6))".into(), End::Error("too many nested")),
        ("json out", "local t = {} t[1] = t return cjson.encode(t)".into(), End::Error("excessive nesting")),
        (
            "json out, deeper",
            "cjson.encode_max_depth(1e9) local t = {} t[1] = t return cjson.encode(t)".into(),
            End::Error("excessive nesting"),
        ),
        ("msgpack", "return cmsgpack.unpack(('\\145'):rep(1e6))".into(), End::Error("stack overflow")),
        ("msgpack out", "local t = {} t[1] = t return #cmsgpack.pack(t)".into(), End::Done),
    ] {
        check(name, source.as_bytes(), end);
    }
}

#[test]
fn malformed_input_is_an_error() {
    for (name, source, end) in [
        (
            "bytecode",
            "return select(2, loadstring('\\27Lua\\81\\0\\1\\4\\8\\4\\8\\0'))",
            End::Error("unexpected symbol"),
        ),
        ("bytecode of a function", "return string.dump(function() end)", End::Error("unable to dump")),
        ("json", "return cjson.decode('{\"a\":')", End::Error("Expected value but found T_END")),
        ("json zero", "return cjson.decode('[1,\\0]')", End::Error("Expected value but found T_END")),
        ("json number", "return cjson.decode('-')", End::Error("invalid number")),
        ("json string", "return cjson.decode('\"\\\\u12')", End::Error("invalid unicode escape")),
        ("msgpack", "return cmsgpack.unpack('\\193')", End::Error("Bad data format")),
        ("msgpack end", "return cmsgpack.unpack('\\219\\255\\255\\255\\255')", End::Error("Missing bytes")),
        ("msgpack key", "return cmsgpack.unpack('\\129\\192\\1')", End::Error("index is nil")),
        ("msgpack offset", "return cmsgpack.unpack_one('x', 2^31 - 1)", End::Error("greater than input length")),
        ("msgpack offset below", "return cmsgpack.unpack_one('x', -2^31)", End::Error("Invalid request")),
        ("struct", "return struct.unpack('i4', 'abc')", End::Error("too short")),
        ("struct size", "return struct.pack('i99999999999999', 1)", End::Error("overflow")),
        ("struct big size", "return struct.unpack('c2147483647', 'abc')", End::Error("too short")),
        ("struct offset", "return struct.unpack('b', 'abc', 2^62)", End::Error("too short")),
        ("struct offset below", "return struct.unpack('b', 'abc', -2^62)", End::Error("too short")),
        ("struct lowest offset", "return struct.unpack('b', 'abc', -2^63)", End::Error("too short")),
        ("struct c0", "return struct.unpack('dc0', struct.pack('d', -1))", End::Error("too short")),
        ("struct padding", "return struct.pack('c2147483647', 'x')", End::Error("too")),
        ("struct padding sum", "return struct.size(('c2147483647'):rep(1000)) > 0", End::Done),
        ("format", "return string.format('%99999d', 1)", End::Error("invalid format")),
        ("format option", "return string.format('%')", End::Error("no value")),
        ("zero bytes", "return #('\\0'):rep(100) + #string.format('%s', ('\\0'):rep(200))", End::Done),
        ("source of zero bytes", "return select(2, loadstring(('\\0'):rep(100)))", End::Error("char(0)")),
        ("huge numbers", "return tonumber(('9'):rep(1e6))", End::Done),
        ("huge exponents", "return tonumber('1e' .. ('9'):rep(1e6))", End::Done),
        ("invalid key", "return next({}, {})", End::Error("invalid key")),
    ] {
        check(name, source.as_bytes(), end);
    }
    check("a script of zero bytes", b"\0\0\0", End::Error("unexpected symbol"));
    check("a script of bytecode", b"\x1bLuaQ", End::Error("unexpected symbol"));
    check("a script of high bytes", &[0xff; 100], End::Error("unexpected symbol"));
}

#[test]
fn what_scripts_share_cannot_be_changed() {
    for source in [
        "x = 1",
        "_G.x = 1",
        "rawset(_G, 'x', 1)",
        "setmetatable(_G, {})",
        "setmetatable(_G, nil)",
        "getmetatable(_G).__index = nil",
        "rawset(getmetatable(_G), '__index', nil)",
        "string.rep = nil",
        "rawset(string, 'rep', nil)",
        "setmetatable(string, {})",
        "getmetatable('').__index = {}",
        "rawset(getmetatable(''), '__index', {})",
        "setmetatable(getmetatable(''), {})",
        "table.insert(string, 1)",
        "table.insert(string, 1, 1)",
        "table.sort(_G) table.insert(_G, 1)",
        "for k in pairs(table) do table[k] = nil end",
        "cjson.null = 1",
        "math.pi = 3",
        "coroutine.wrap(function() string.x = 1 end)()",
        "pcall(rawset, string, 'x', 1) string.x = 1",
        "local t = setmetatable({}, {__index = string, __newindex = string}) t.x = 1",
        "function string.foo() end",
        "function foo() end",
        "_G._G = nil",
        "print = nil",
    ] {
        check(source, source.as_bytes(), End::Error("readonly table"));
    }
    check("a new library", b"local s = 0 for k, v in pairs(string) do s = s + 1 end return s", End::Done);
}
