//! The language: cases with what Redis 8.2.3 answers, and what interruption and collection must not change.

use super::*;

/// Puts results into one line, as the cases were recorded on the real server.
pub(super) const SHOW: &str = "local function show(ok, ...) local t = {} for i=1,select('#',...) do local v = select(i,...) \
    t[#t+1] = type(v)=='string' and string.format('%q', v) or (type(v)=='table' and 'table' or type(v)=='function' \
    and 'function' or tostring(v)) end return (ok and 'ok ' or 'err ')..table.concat(t, ' ') end\nreturn show(pcall(function() ";

fn escaped(bytes: &[u8]) -> String {
    let show = |byte: &u8| match byte {
        32..=126 if *byte != b'\\' => char::from(*byte).to_string(),
        _ => format!("\\x{byte:02x}"),
    };
    bytes.iter().map(show).collect()
}

/// Runs each case, a script and `= result`, on one machine after the other, in slices.
pub(super) fn check_cases(cases: &str, fuel: u64) {
    let limits = Limits::default();
    let mut machine = Machine::new(limits, Vec::new().into());
    let mut lines = cases.lines();
    while let (Some(script), Some(expected)) = (lines.next(), lines.next()) {
        let expected = expected.strip_prefix("= ").unwrap();
        let source = format!("{SHOW}{script} end))");
        let mut out = Vec::new();
        match Chunk::compile(source.as_bytes(), "@user_script", &limits) {
            Err(text) => out.extend_from_slice(&[b"error ", &*text].concat()),
            Ok(chunk) => {
                assert!(machine.start(&chunk));
                loop {
                    match machine.run(fuel) {
                        Outcome::OutOfFuel => {}
                        Outcome::Done => break show(&machine, machine.values()[0], &mut out),
                        Outcome::Failed(failure) => {
                            out.extend_from_slice(b"error ");
                            break show(&machine, failure.value.unwrap(), &mut out);
                        }
                        Outcome::Call(_) => unreachable!(),
                    }
                }
                machine.reset();
            }
        }
        assert_eq!(escaped(&out), expected, "{script}");
    }
}

#[test]
fn scripts_answer_as_on_the_real_server() {
    check_cases(include_str!("language.txt"), u64::MAX);
}

#[test]
fn a_script_may_be_interrupted_after_every_step() {
    check_cases(include_str!("language.txt"), 1);
}

#[test]
fn collecting_garbage_is_not_seen() {
    let source = "
        local keep, weight = {}, {}
        local co = coroutine.wrap(function() local own = {1, 2, 3} while true do coroutine.yield(#own .. 'x') end end)
        local function counter() local n = 0 return function() n = n + 1 return n end end
        local count = counter()
        -- Of a coroutine that nobody holds any more a function still has the variables.
        local lone
        do
            local gone = coroutine.create(function()
                local own = {7}
                lone = function() return own[1] end
                coroutine.yield()
            end)
            coroutine.resume(gone)
        end
        for i = 1, 3000 do
            local t = {i, tostring(i), {i}}
            keep[i % 50 + 1] = t
            weight['k' .. i] = i
            if i > 10 then weight['k' .. (i - 10)] = nil end
            assert(co() == '3x' and count() == i and lone() == 7)
            local s = ('a'):rep(i % 40) .. i
            assert(s:gsub('a', function(c) return ({b = c}).b end) == s)
        end
        local n, sum = 0, 0
        for k, v in pairs(weight) do n = n + 1 sum = sum + v assert(k == 'k' .. v) end
        for i = 1, 50 do local t = keep[i] assert(t[2] == tostring(t[1]) and t[3][1] == t[1]) end
        print(n, sum)";
    let limits = Limits { max_bytes: 1 << 20, ..Limits::default() };
    let chunk = Chunk::compile(source.as_bytes(), "@user_script", &limits).unwrap();
    for fuel in [50, 1_000, u64::MAX] {
        let mut machine = machine(limits);
        assert!(machine.start(&chunk));
        assert_eq!(String::from_utf8(finish(&mut machine, fuel)).unwrap(), "10\t29955\n");
        assert!(machine.peak_bytes() <= 1 << 20);
    }
}

#[test]
fn errors_name_lines_and_levels() {
    for (source, expected) in [
        ("\n\nerror('x')", "FAILED user_script:3: x"),
        ("local t = {}\nt.a\n.b\n.c = 1", "FAILED user_script:3: attempt to index field 'a' (a nil value)"),
        ("local f = function()\n error('x', 2)\nend\n\nf()", "FAILED user_script:5: x"),
        ("return (\n1 +\nnil)", "FAILED user_script:3: attempt to perform arithmetic on a nil value"),
        ("local a = 1\nlocal b = {}\nreturn a\n<\nb", "FAILED user_script:5: attempt to compare number with table"),
        ("print(\n1,\nnil .. 'x')", "FAILED user_script:3: attempt to concatenate a nil value"),
        ("string.rep(\n'x',\n{})", "FAILED user_script:1: bad argument #2 to 'rep' (number expected, got table)"),
        ("x = 1", "FAILED user_script:1: Attempt to modify a readonly table"),
        ("return y", "FAILED user_script:1: Script attempted to access nonexistent global variable 'y'"),
        ("if", "FAILED user_script:1: unexpected symbol near '<eof>'"),
    ] {
        assert_eq!(run(source), expected, "{source}");
    }
}

#[test]
fn names_that_were_not_declared_are_errors_everywhere() {
    for source in ["return undeclared", "return function() return undeclared end", "undeclared()", "undeclared.x = 1"] {
        let source = format!(
            "local ok, text = pcall(function() {source} end) if type(text) == 'function' then text = select(2, pcall(text)) end print(text)"
        );
        assert_eq!(
            run(&source),
            "user_script:1: Script attempted to access nonexistent global variable 'undeclared'\n"
        );
    }
}
