//! Generated programs do the same here and in `lua5.1`, texts of errors and the order of `pairs` included.
//!
//! Skipped where `lua5.1` is not installed. `TARN_LUA_PROGRAMS` says how many programs (3,000), `TARN_LUA_SEED` from which seed.

use super::*;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn one_of<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len())]
    }
}

/// Writes one program. All its loops end, and no string grows beyond some bytes.
struct Generator {
    random: Random,
    /// Names of local variables that are visible.
    names: Vec<String>,
    count: usize,
    /// Whether `...` is to be had.
    varargs: bool,
}

/// What programs use so that addresses are never shown, keys have an order, and strings stay short.
/// That of strings is protected here, as in Redis.
const PRELUDE: &str = "local meta = getmetatable \
    local function getmetatable(x) if type(x) ~= 'string' then return meta(x) end end \
    local function str(x) local t = type(x) \
    if t == 'table' or t == 'function' or t == 'thread' then return t end return tostring(x) end \
    local function cut(x) if type(x) == 'string' then return x:sub(1, 24) end return x end \
    local function key(x) local t = type(x) if t == 'table' or t == 'function' or t == 'thread' then return t end return cut(x) end \
    local function dump(t) if type(t) ~= 'table' then return str(t) end local s = '' \
    for k, v in pairs(t) do s = s .. str(k) .. '=' .. str(v) .. ';' if #s > 400 then break end end return s .. '#' .. #t end\n";

impl Generator {
    fn program(seed: u64) -> String {
        let mut this = Generator { random: Random(seed), names: Vec::new(), count: 0, varargs: true };
        let mut out = PRELUDE.to_string();
        for _ in 0..2 + this.random.below(3) {
            let name = this.fresh();
            let value = if this.random.below(2) == 0 { this.scalar().into() } else { this.constructor(1) };
            let _ = writeln!(out, "local {name} = {value}");
            this.names.push(name);
        }
        for _ in 0..4 + this.random.below(8) {
            if this.random.below(8) > 0 {
                let names = this.names.len();
                let varargs = std::mem::replace(&mut this.varargs, true);
                let body = this.block(2);
                let result = this.expression(2);
                this.names.truncate(names);
                this.varargs = varargs;
                let values = this.list(1);
                let _ = writeln!(out, "print(pcall(function(...) {body} return str({result}) end, {values}))");
            } else {
                out += &this.statement(2);
            }
            let name = this.name();
            let _ = writeln!(out, "print(dump({name}))");
        }
        out
    }

    fn fresh(&mut self) -> String {
        self.count += 1;
        format!("{}{}", self.random.one_of(&["a", "b", "c", "v", "self", "x"]), self.count)
    }

    fn name(&mut self) -> String {
        if self.names.is_empty() {
            return "str".into();
        }
        self.names[self.random.below(self.names.len())].clone()
    }

    fn block(&mut self, depth: usize) -> String {
        let names = self.names.len();
        let statements: String = (0..1 + self.random.below(4)).map(|_| self.statement(depth)).collect();
        self.names.truncate(names);
        statements
    }

    fn statement(&mut self, depth: usize) -> String {
        let depth = depth.saturating_sub(1);
        match self.random.below(if depth == 0 { 6 } else { 15 }) {
            0 | 1 => {
                let (name, value) = (self.fresh(), self.expression(2));
                self.names.push(name.clone());
                format!("local {name} = {value}\n")
            }
            2 => format!("{} = cut({})\n", self.name(), self.expression(2)),
            3 => format!("{}[key({})] = cut({})\n", self.name(), self.expression(1), self.expression(2)),
            4 => format!("{}.{} = cut({})\n", self.name(), self.field(), self.expression(2)),
            5 => format!("print(str({}), {})\n", self.expression(2), self.scalar()),
            6 => {
                let condition = self.expression(2);
                let (then, other) = (self.block(depth), self.block(depth));
                match self.random.below(3) {
                    0 => format!("if {condition} then {then} end\n"),
                    1 => format!("if {condition} then {then} else {other} end\n"),
                    _ => format!("if {condition} then {then} elseif {} then {other} end\n", self.expression(1)),
                }
            }
            7 => {
                let variable = self.fresh();
                let bounds = self.random.one_of(&["1, 3", "3, 1, -1", "1, 2, 0.5", "1, 0", "-1, 1", "'1', 2", "1, {}"]);
                self.names.push(variable.clone());
                let body = self.block(depth);
                self.names.pop();
                let end = self.random.one_of(&["", "", "break"]);
                format!("for {variable} = {bounds} do {body} {end} end\n")
            }
            8 => {
                let (k, v, table) = (self.fresh(), self.fresh(), self.expression(1));
                let walk = self.random.one_of(&["pairs", "ipairs", "pairs"]);
                self.names.extend([k.clone(), v.clone()]);
                let body = self.block(depth);
                self.names.truncate(self.names.len() - 2);
                let n = self.fresh();
                format!(
                    "local {n} = 0 for {k}, {v} in {walk}({table}) do {n} = {n} + 1 if {n} > 5 then break end {body} end\n"
                )
            }
            9 => {
                let (n, body) = (self.fresh(), self.block(depth));
                match self.random.below(2) {
                    0 => format!("local {n} = 0 while {n} < 3 do {n} = {n} + 1 {body} end\n"),
                    _ => format!("local {n} = 0 repeat {n} = {n} + 1 local y{n} = {n} {body} until y{n} >= 2\n"),
                }
            }
            10 => {
                let (function, body) = (self.fresh(), self.function(depth));
                self.names.push(function.clone());
                format!("local {function} = {body}\n")
            }
            11 => {
                let (a, b) = (self.name(), self.name());
                format!("{a}, {b} = cut({}), cut({})\n", self.expression(2), self.expression(2))
            }
            12 => format!("do {} end\n", self.block(depth)),
            13 => {
                let (a, b) = (self.fresh(), self.fresh());
                let values = self.list(2);
                self.names.extend([a.clone(), b.clone()]);
                format!("local {a}, {b} = {values}\n")
            }
            _ => format!("print(pcall(function() {} end))\n", self.block(depth)),
        }
    }

    fn field(&mut self) -> &'static str {
        self.random.one_of(&["x", "y", "n", "foo", "bar", "len", "k1", "k2", "k3"])
    }

    fn scalar(&mut self) -> &'static str {
        self.random.one_of(&[
            "0",
            "1",
            "2",
            "-1",
            "3.5",
            "1e15",
            "2^53",
            "0.1",
            "-0.5",
            "1e300",
            "255",
            "7",
            "10",
            "nil",
            "true",
            "false",
            "''",
            "'a'",
            "'abc'",
            "'10'",
            "'0x1F'",
            "' 5 '",
            "'hello world'",
            "'a,b,c'",
            "'x=1'",
            "'\\n'",
            "'%d'",
            "'é'",
            "\"q'q\"",
            "[[long]]",
            "1/0",
            "-1/0",
        ])
    }

    fn list(&mut self, depth: usize) -> String {
        let items: Vec<String> = (0..1 + self.random.below(3)).map(|_| self.expression(depth)).collect();
        items.join(", ")
    }

    fn function(&mut self, depth: usize) -> String {
        let names = self.names.len();
        let varargs = self.varargs;
        let (a, b) = (self.fresh(), self.fresh());
        let parameters = match self.random.below(4) {
            0 => a.clone(),
            1 => format!("{a}, {b}"),
            2 => "...".to_string(),
            _ => format!("{a}, ..."),
        };
        self.varargs = parameters.contains("...");
        self.names.extend(parameters.split(", ").filter(|p| *p != "...").map(String::from));
        let body = self.block(depth);
        let result = self.list(1);
        self.names.truncate(names);
        self.varargs = varargs;
        format!("function({parameters}) {body} return {result} end")
    }

    fn expression(&mut self, depth: usize) -> String {
        if depth == 0 {
            return if self.random.below(2) == 0 { self.scalar().into() } else { self.name() };
        }
        let depth = depth - 1;
        match self.random.below(20) {
            0 | 1 => self.scalar().into(),
            2 | 3 => self.name(),
            11..=19 if self.random.below(2) == 0 => self.name(),
            4 => {
                let op = self.random.one_of(&["+", "-", "*", "/", "%", "^"]);
                format!("({} {op} {})", self.expression(depth), self.expression(depth))
            }
            5 => {
                let op = self.random.one_of(&["==", "~=", "<", "<=", ">", ">="]);
                format!("({} {op} {})", self.expression(depth), self.expression(depth))
            }
            6 => {
                let op = self.random.one_of(&["and", "or"]);
                format!("({} {op} {})", self.expression(depth), self.expression(depth))
            }
            7 => format!("(cut({}) .. cut({}))", self.expression(depth), self.expression(depth)),
            8 => {
                let op = self.random.one_of(&["not ", "-", "#"]);
                format!("({op}{})", self.expression(depth))
            }
            9 | 10 => self.constructor(depth),
            11 => format!("{}.{}", self.name(), self.field()),
            12 => format!("{}[key({})]", self.name(), self.expression(depth)),
            13 => format!("{}({})", self.name(), self.list(depth)),
            14 => format!("({})({})", self.function(depth), self.list(depth)),
            15 => format!("{}:{}({})", self.name(), self.field(), self.list(depth)),
            16 if self.varargs => self.random.one_of(&["...", "(...)", "select('#', ...)", "{...}"]).into(),
            17 => self.object(depth),
            18 => self.coroutine(depth),
            _ => self.library(depth),
        }
    }

    fn constructor(&mut self, depth: usize) -> String {
        let items: Vec<String> = (0..self.random.below(6))
            .map(|_| match self.random.below(4) {
                0 => format!("{} = {}", self.field(), self.expression(depth)),
                1 => format!("[key({}) or 1] = {}", self.scalar(), self.expression(depth)),
                _ => self.expression(depth),
            })
            .collect();
        format!("{{{}}}", items.join(", "))
    }

    fn object(&mut self, depth: usize) -> String {
        let event = self.random.one_of(&[
            "__index",
            "__newindex",
            "__add",
            "__concat",
            "__eq",
            "__lt",
            "__le",
            "__call",
            "__len",
            "__unm",
            "__tostring",
            "__sub",
            "__mod",
        ]);
        let handler = if self.random.below(4) == 0 { self.constructor(depth) } else { self.function(depth) };
        format!("setmetatable({}, {{{event} = {handler}}})", self.constructor(depth))
    }

    fn coroutine(&mut self, depth: usize) -> String {
        let (a, body) = (self.fresh(), self.expression(depth));
        let values = self.list(depth);
        match self.random.below(3) {
            0 => format!("coroutine.wrap(function({a}) coroutine.yield({a}) return {body} end)({values})"),
            1 => format!(
                "{{coroutine.resume(coroutine.create(function({a}) local r = coroutine.yield({body}) return r end), {values})}}"
            ),
            _ => format!(
                "(function() local c = coroutine.create(function({a}) for i = 1, 3 do {a} = coroutine.yield({body}, i) end end) \
                 local s = '' for i = 1, 5 do local r, v = coroutine.resume(c, {values}) \
                 s = s .. str(r) .. str(v) .. coroutine.status(c) .. ' ' end return s end)()"
            ),
        }
    }

    fn library(&mut self, depth: usize) -> String {
        let pattern = self.random.one_of(&[
            "'%a+'",
            "'(%w)(%w)'",
            "'.-'",
            "'^%s*(.-)%s*$'",
            "'[a-c]'",
            "'[^%d]+'",
            "'()'",
            "'%b()'",
            "'%f[%w]%w+'",
            "'l*'",
            "'%d?'",
            "'(a)%1'",
            "'x?y+'",
            "''",
            "'%'",
            "'['",
            "'(.)(.)(.)'",
            "','",
            "'.'",
            "'%s'",
            "'[%w_]-$'",
        ]);
        let format = self.random.one_of(&[
            "'%d'",
            "'%5.2f'",
            "'%s'",
            "'%q'",
            "'%x'",
            "'%-8s|'",
            "'%g'",
            "'%e'",
            "'%c'",
            "'%05d'",
            "'%+i'",
            "'%.3s'",
            "'%%'",
            "'%o %X'",
            "'%10.4g|%s'",
        ]);
        let (x, y, z) = (self.expression(depth), self.expression(depth), self.scalar());
        let number = self.random.one_of(&["1", "2", "-1", "0", "3", "-2", "10", "2.7", "'2'", "nil"]);
        let replacement = match self.random.below(4) {
            0 => "'<%0>'".to_string(),
            1 => "'%1'".to_string(),
            2 => self.constructor(depth),
            _ => self.function(depth),
        };
        match self.random.below(34) {
            0 => format!("string.sub({x}, {number}, {z})"),
            1 => format!("string.find({x}, {pattern}, {number})"),
            2 => format!("string.match({x}, {pattern})"),
            3 => format!("string.gsub({x}, {pattern}, {replacement})"),
            4 => format!("string.format({format}, {x}, {y})"),
            5 => format!("string.rep(cut({x}), {number})"),
            6 => format!("string.byte({x}, {number})"),
            7 => format!("(cut({x})):upper()"),
            8 => format!("string.reverse({x})"),
            9 => format!("string.len({x})"),
            10 => format!("table.concat({x}, {z})"),
            11 => format!("table.insert({x}, {y})"),
            12 => format!("table.insert({x}, {number}, {y})"),
            13 => format!("table.remove({x}, {number})"),
            14 => format!("table.sort({x})"),
            15 => format!("table.sort({x}, function(p, q) return str(p) > str(q) end)"),
            16 => format!("table.maxn({x})"),
            17 => format!("unpack({x}, {number})"),
            18 => format!("select({number}, {x}, {y})"),
            19 => format!("tonumber({x})"),
            20 => format!("tonumber({x}, {number})"),
            21 => format!("str({x})"),
            22 => format!("type({x})"),
            23 => format!("next({x})"),
            24 => format!("rawget({x}, key({y}))"),
            25 => format!("rawequal({x}, {y})"),
            26 => format!("pcall({x}, {y})"),
            27 => format!("select(2, pcall(error, {x}, {number}))"),
            28 => format!("math.floor({x})"),
            29 => format!("math.max({x}, {y})"),
            30 => format!("math.fmod({x}, {y})"),
            31 => format!("loadstring('return ' .. tostring({z}))"),
            32 => format!(
                "(function() local s = '' for w in string.gmatch({x}, {pattern}) do s = s .. str(w) .. '.' end return s end)()"
            ),
            _ => format!("getmetatable({x})"),
        }
    }
}

/// The same surroundings in `lua5.1`: programs come one after the other, each with its length before it.
const RUNNER: &str = r#"
io.stdout:setvbuf('full')
local raw, kinds = tostring, { table = true, ['function'] = true, thread = true, userdata = true }
local function shown(v) local t = type(v) if kinds[t] then return t end return raw(v) end
function print(...)
  for i = 1, select('#', ...) do
    if i > 1 then io.write('\t') end
    io.write(shown((select(i, ...))))
  end
  io.write('\n')
end
setmetatable(_G, { __index = function(_, name)
  error("Script attempted to access nonexistent global variable '" .. name .. "'", 2)
end })
while true do
  local n = io.read('*n')
  if not n then break end
  io.read(1)
  local f, e = loadstring(io.read(n), '@user_script')
  if f then local ok ok, e = pcall(f) if ok then e = nil end end
  if e ~= nil then io.write('FAILED ', shown(e)) end
  io.write('\0')
end
"#;

/// Says of each program only whether it compiles.
const COMPILER: &str = r#"
io.stdout:setvbuf('full')
while true do
  local n = io.read('*n')
  if not n then break end
  io.read(1)
  local f, e = loadstring(io.read(n), '@user_script')
  io.write(f and 'compiles' or e, '\0')
end
"#;

fn reference(runner: &str, programs: &[String]) -> Option<Vec<String>> {
    let mut child =
        Command::new("lua5.1").args(["-e", runner]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
    let mut stdin = child.stdin.take().unwrap();
    let input: Vec<u8> = programs.iter().flat_map(|p| format!("{}\n{p}", p.len()).into_bytes()).collect();
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Some(text.split('\0').map(String::from).take(programs.len()).collect())
}

fn from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn generated_programs_do_what_they_do_in_lua() {
    let count = from_environment("TARN_LUA_PROGRAMS", 3_000);
    let seed = from_environment("TARN_LUA_SEED", 1);
    let mut failed = 0;
    for batch in (seed..seed + count).collect::<Vec<_>>().chunks(500) {
        let programs: Vec<String> = batch.iter().map(|seed| Generator::program(*seed)).collect();
        let Some(expected) = reference(RUNNER, &programs) else {
            eprintln!("skipped: there is no lua5.1");
            return;
        };
        for ((program, expected), seed) in programs.iter().zip(&expected).zip(batch) {
            let got = run_in_slices(program.as_bytes(), 1 + seed % 2_000);
            if got != *expected {
                failed += 1;
                if failed <= 5 {
                    let (a, b) = got.lines().zip(expected.lines()).find(|(a, b)| a != b).unwrap_or((&got, expected));
                    let program = program.replacen(PRELUDE, "", 1);
                    eprintln!("seed {seed}:\n{program}\n  here: {a}\n  lua:  {b}");
                }
            }
        }
    }
    assert_eq!(failed, 0, "programs that differ");
}

/// Takes tokens away, doubles, swaps and inserts some.
fn mutated(program: &str, random: &mut Random) -> String {
    let mut tokens: Vec<String> = Vec::new();
    for c in program.chars() {
        match tokens.last_mut() {
            Some(last) if c.is_alphanumeric() && last.chars().all(char::is_alphanumeric) => last.push(c),
            _ => tokens.push(c.to_string()),
        }
    }
    for _ in 0..1 + random.below(3) {
        if tokens.len() < 2 {
            break;
        }
        let (at, other) = (random.below(tokens.len()), random.below(tokens.len()));
        match random.below(5) {
            0 => {
                tokens.remove(at);
            }
            1 => tokens.insert(at, tokens[other].clone()),
            2 => tokens.swap(at, other),
            3 => tokens.truncate(at.max(1)),
            _ => {
                let token = random.one_of(&[
                    " end ",
                    " do ",
                    " then ",
                    " local ",
                    " function ",
                    " return ",
                    " break ",
                    " if ",
                    " until ",
                    " repeat ",
                    "(",
                    ")",
                    "{",
                    "}",
                    "[",
                    "]",
                    "'",
                    "\"",
                    "[[",
                    "]]",
                    "--",
                    "--[[",
                    "\n",
                    "\\",
                    "...",
                    "..",
                    "=",
                    "==",
                    "~=",
                    "~",
                    ";",
                    ":",
                    ",",
                    ".",
                    " and ",
                    " not ",
                    " nil ",
                    "0x",
                    "1e",
                    "3x",
                    "@",
                    "$",
                    "\u{1}",
                    "é",
                ]);
                tokens.insert(at, token.into());
            }
        }
    }
    tokens.concat()
}

#[test]
fn spoilt_programs_are_refused_with_the_same_texts() {
    let count = from_environment("TARN_LUA_PROGRAMS", 3_000);
    let seed = from_environment("TARN_LUA_SEED", 1);
    let mut failed = 0;
    for batch in (seed..seed + count).collect::<Vec<_>>().chunks(500) {
        let spoil = |seed: &u64| mutated(&Generator::program(*seed), &mut Random(*seed));
        let programs: Vec<String> = batch.iter().map(spoil).collect();
        let Some(expected) = reference(COMPILER, &programs) else {
            eprintln!("skipped: there is no lua5.1");
            return;
        };
        for ((program, expected), seed) in programs.iter().zip(&expected).zip(batch) {
            let limits = Limits::default();
            let got = match Chunk::compile(program.as_bytes(), "@user_script", &limits) {
                Err(text) => String::from_utf8_lossy(&text).into_owned(),
                Ok(chunk) => {
                    // It may do anything now, but it ends with its steps.
                    let mut machine = machine(Limits { max_bytes: 4 << 20, ..limits });
                    assert!(machine.start(&chunk));
                    for _ in 0..20 {
                        match machine.run(1_000) {
                            Outcome::OutOfFuel => {}
                            Outcome::Call(_) => machine.answer(&[]),
                            Outcome::Done | Outcome::Failed(_) => break,
                        }
                    }
                    assert!(machine.peak_bytes() <= 4 << 20);
                    "compiles".into()
                }
            };
            if got != *expected {
                failed += 1;
                if failed <= 5 {
                    eprintln!("seed {seed}:\n{program}\n  here: {got}\n  lua:  {expected}");
                }
            }
        }
    }
    assert_eq!(failed, 0, "programs that differ");
}

#[test]
fn little_room_changes_nothing_but_the_end() {
    let seed = from_environment("TARN_LUA_SEED", 1);
    let (mut same, mut cut) = (0, 0);
    for seed in seed..seed + from_environment("TARN_LUA_PROGRAMS", 1_000) {
        let program = Generator::program(seed);
        let limits = Limits::default();
        let Ok(chunk) = Chunk::compile(program.as_bytes(), "@user_script", &limits) else { continue };
        let whole = run_in_slices(program.as_bytes(), u64::MAX);
        for room in [40, 46, 52, 64, 90] {
            let mut machine = machine(Limits { max_bytes: room << 10, ..limits });
            if !machine.start(&chunk) {
                continue;
            }
            let out = String::from_utf8_lossy(&finish(&mut machine, 1 + seed % 500)).into_owned();
            if out == whole {
                same += 1;
            } else {
                let begun = out.strip_suffix("FAILED out of memory");
                assert!(
                    begun.is_some_and(|begun| whole.starts_with(begun)),
                    "seed {seed}, {room} KiB:\n{program}\n{out}\nnot\n{whole}"
                );
                cut += 1;
            }
        }
    }
    assert!(same > 0 && cut > 0, "{same} {cut}");
}
