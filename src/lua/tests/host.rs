//! The host's side: calls and answers, errors, threads, what one script leaves to the next, bytes and steps.

use super::*;

fn chunk(source: &str) -> Arc<Chunk> {
    Chunk::compile(source.as_bytes(), "@user_script", &Limits::default()).unwrap()
}

fn text(machine: &Machine, value: Value) -> String {
    let mut out = Vec::new();
    show(machine, value, &mut out);
    String::from_utf8(out).unwrap()
}

#[test]
fn a_call_waits_for_its_answer_wherever_it_is_made() {
    for source in [
        "return print('a') .. 'b'",
        "return (select(2, pcall(print, 'a'))) .. 'b'",
        "return coroutine.wrap(function() return print('a') end)() .. 'b'",
        "return (('x'):gsub('x', print)) .. 'b'",
        "return setmetatable({}, {__index = print})['a'] .. 'b'",
        "return tostring(setmetatable({}, {__tostring = print})) .. 'b'",
        "local r for v in print, 'a' do r = v break end return r .. 'b'",
        "local t = {2, 1} local r table.sort(t, function(a, b) r = print('a') return a < b end) return r .. 'b'",
        "return loadstring('return print(...)')('a') .. 'b'",
    ] {
        let mut machine = machine(Limits::default());
        assert!(machine.start(&chunk(source)));
        let mut calls = 0;
        let result = loop {
            match machine.run(1_000) {
                Outcome::Call(PRINT) => {
                    calls += 1;
                    let answer = machine.string(b"A").unwrap();
                    machine.answer(&[answer]);
                }
                Outcome::Done => break text(&machine, machine.values()[0]),
                other => panic!("{source}: {other:?}"),
            }
        };
        assert_eq!((calls > 0, &*result), (true, "Ab"), "{source}");
    }
}

#[test]
fn an_error_of_the_host_is_raised_in_the_script() {
    let mut machine = machine(Limits::default());
    assert!(machine.start(&chunk(
        "local ok, e = pcall(print, 1)\nlocal ok2, e2 = pcall(function()\nprint(2) end)\nreturn e, e2, print(3)"
    )));
    assert!(matches!(machine.run(1_000), Outcome::Call(PRINT)));
    // Called by `pcall`, not by a Lua function.
    assert_eq!(machine.caller(), None);
    machine.fail_text(b"first", true);
    assert!(matches!(machine.run(1_000), Outcome::Call(PRINT)));
    assert_eq!(machine.caller().unwrap().1, 3);
    machine.fail_text(b"second", true);
    assert!(matches!(machine.run(1_000), Outcome::Call(PRINT)));
    let table = machine.table(0, 1).unwrap();
    let (key, value) = (machine.string(b"err").unwrap(), machine.string(b"ERR third").unwrap());
    machine.set(table, key, value).unwrap();
    machine.fail(Value::Table(table));
    let Outcome::Failed(failure) = machine.run(1_000) else { panic!("caught by nobody") };
    assert_eq!(failure.value, Some(Value::Table(table)));
    let (source, line) = failure.position.unwrap();
    assert_eq!((&*source, line), (&b"@user_script"[..], 4));
}

#[test]
fn what_the_host_failed_with_is_caught_by_pcall() {
    let mut machine = machine(Limits::default());
    assert!(machine.start(&chunk("return select(2, pcall(print)), select(2, pcall(function() print() end))")));
    for position in [false, true] {
        assert!(matches!(machine.run(1_000), Outcome::Call(PRINT)));
        machine.fail_text(b"no", position);
    }
    assert!(matches!(machine.run(1_000), Outcome::Done));
    let values: Vec<String> = machine.values().to_vec().into_iter().map(|value| text(&machine, value)).collect();
    assert_eq!(values, ["no", "user_script:1: no"]);
}

#[test]
fn a_running_script_moves_between_threads() {
    fn is_send<T: Send>() {}
    is_send::<Machine>();
    let mut machine = machine(Limits::default());
    assert!(machine.start(&chunk("local s = 0 for i = 1, 1000 do s = s + i end return s")));
    let mut hops = 0;
    loop {
        let (back, outcome) = std::thread::spawn(move || {
            let outcome = machine.run(500);
            (machine, matches!(outcome, Outcome::Done))
        })
        .join()
        .unwrap();
        machine = back;
        if outcome {
            break;
        }
        hops += 1;
    }
    assert_eq!(machine.values(), [Value::Number(500_500.0)]);
    assert!(hops > 1);
}

#[test]
fn nothing_is_left_for_the_next_script() {
    let mut machine = machine(Limits::default());
    let keys = machine.table(1, 0).unwrap();
    machine.set_global("KEYS", Value::Table(keys)).unwrap();
    assert!(machine.start(&chunk("KEYS[1] = 5 KEYS.x = 6 return #KEYS")));
    assert!(matches!(machine.run(1_000), Outcome::Done));
    machine.reset();
    assert!(machine.start(&chunk("return KEYS")));
    let Outcome::Failed(failure) = machine.run(1_000) else { panic!("KEYS are still there") };
    let expected = "user_script:1: Script attempted to access nonexistent global variable 'KEYS'";
    assert_eq!(text(&machine, failure.value.unwrap()), expected);
    machine.reset();
    let keys = machine.table(1, 0).unwrap();
    machine.set_global("KEYS", Value::Table(keys)).unwrap();
    assert!(machine.start(&chunk("return KEYS.x")));
    assert!(matches!(machine.run(1_000), Outcome::Done));
    assert_eq!(machine.values(), [Value::Nil]);
}

#[test]
fn a_machine_is_reset_in_every_state() {
    let sources = [
        "local t = {} while true do t[#t + 1] = {} end",
        "coroutine.wrap(function() while true do local x = {} end end)()",
        "coroutine.wrap(function() print() end)()",
        "pcall(function() print() end)",
        "return ('x'):rep(1000):gsub('.', function() print() end)",
        "error({})",
        "coroutine.wrap(function() error('x') end)()",
        "return cjson.encode({{{{{{{{{{}}}}}}}}}})",
        "local t = {} for i = 1, 1000 do t[i] = -i end table.sort(t, function(a, b) print() return a < b end)",
    ];
    let chunks: Vec<_> = sources.iter().map(|source| chunk(source)).collect();
    let last = chunk("local t = {} for i = 1, 50 do t[i] = {i} end return #t");
    let mut machine = machine(Limits::default());
    for fuel in [1, 7, 50, 333, 2_000, 60_000] {
        for chunk in &chunks {
            assert!(machine.start(chunk));
            let _ = machine.run(fuel);
            machine.reset();
            assert!(machine.start(&last));
            assert!(matches!(machine.run(10_000_000), Outcome::Done));
            assert_eq!(machine.values(), [Value::Number(50.0)]);
            machine.reset();
        }
    }
}

#[test]
fn bytes_come_back() {
    let mut machine = machine(Limits::default());
    let base = machine.bytes();
    let work = chunk("local t = {} for i = 1, 100 do t[i] = {tostring(i), function() return i end} end return #t");
    for _ in 0..2_000 {
        assert!(machine.start(&work));
        assert!(matches!(machine.run(1_000_000), Outcome::Done));
        machine.reset();
    }
    assert!(machine.peak_bytes() < base + (2 << 20), "{} bytes at most", machine.peak_bytes());
    // Scripts that are never seen again do not stay loaded for ever.
    for n in 0..3_000 {
        assert!(machine.start(&chunk(&format!("local t = {{'{n}'}} return t[1]"))));
        assert!(matches!(machine.run(1_000_000), Outcome::Done));
        machine.reset();
    }
    assert!(machine.bytes() < base + (2 << 20), "{} bytes", machine.bytes());
}

#[test]
fn steps_are_counted_alike_however_they_are_sliced() {
    let source = chunk("local s = 0 for i = 1, 2000 do s = s + #tostring(i) end return s");
    let used = |fuel| {
        let mut machine = machine(Limits::default());
        assert!(machine.start(&source));
        while matches!(machine.run(fuel), Outcome::OutOfFuel) {}
        machine.used()
    };
    let whole = used(u64::MAX);
    assert!((10_000..100_000).contains(&whole), "{whole}");
    for fuel in [1, 10, 999] {
        assert_eq!(used(fuel), whole);
    }
}

#[test]
fn functions_are_kept_and_called_later() {
    let mut machine = machine(Limits::default());
    assert!(machine.start(&chunk("local n = 0 return function(by) n = n + by return n end")));
    assert!(matches!(machine.run(1_000), Outcome::Done));
    let place = machine.keep(machine.values()[0]);
    machine.reset();
    let garbage = chunk("local t for i = 1, 20000 do t = {{}} end");
    for expected in [5.0, 10.0, 15.0] {
        assert!(machine.start(&garbage));
        assert!(matches!(machine.run(u64::MAX), Outcome::Done));
        machine.reset();
        let function = machine.kept(place);
        assert!(machine.start_function(function, &[Value::Number(5.0)]));
        assert!(matches!(machine.run(1_000), Outcome::Done));
        assert_eq!(machine.values(), [Value::Number(expected)]);
        machine.reset();
    }
    machine.forget(place);
    assert_eq!(machine.kept(place), Value::Nil);
}

/// While its text is loaded, a library finds the items for that and nothing else; its functions find the others.
#[test]
fn a_library_is_loaded_apart() {
    let items = |name: &str| -> HostItems { Arc::new([(format!("host.{name}"), HostItem::Number(1.0))]) };
    let mut machine = Machine::for_libraries(Limits::default(), items("late"), items("early"));
    let run = |machine: &mut Machine, source: &str| {
        assert!(machine.start_library(&chunk(source)));
        match machine.run(100_000) {
            Outcome::Done => Ok(machine.values().first().copied()),
            Outcome::Failed(failure) => Err(text(machine, failure.value.unwrap())),
            outcome => panic!("{outcome:?}"),
        }
    };
    for (source, missing) in [("return type", "type"), ("return host.late", "late"), ("return host.type", "type")] {
        let error = run(&mut machine, source).unwrap_err();
        assert!(error.contains(&format!("nonexistent global variable '{missing}'")), "{source}: {error}");
        machine.reset();
    }
    assert!(run(&mut machine, "x = 1").is_err() && run(&mut machine, "host.x = 1").is_err());
    machine.reset();
    let source = "local h, n = host, host.early return function() return type(n), host.late, host.early, h.early end";
    let function = run(&mut machine, source).unwrap().unwrap();
    let place = machine.keep(function);
    machine.reset();
    assert!(machine.start_function(machine.kept(place), &[]));
    assert!(matches!(machine.run(1_000), Outcome::Done));
    let values = machine.values().to_vec();
    assert_eq!(values[1..], [Value::Number(1.0), Value::Nil, Value::Number(1.0)]);
    machine.reset();

    // What nobody keeps goes.
    let before = machine.bytes();
    let long = format!("local t = '{}' return t", "x".repeat(100_000));
    for _ in 0..100 {
        run(&mut machine, &long).unwrap();
        machine.reset();
    }
    assert!(machine.bytes() < before + (2 << 20), "{} bytes more", machine.bytes() - before);
    assert!(machine.start_function(machine.kept(place), &[]), "it is still there");
    assert!(matches!(machine.run(1_000), Outcome::Done));
}

#[test]
fn the_host_reads_and_writes_tables() {
    let mut machine = machine(Limits::default());
    assert!(machine.start(&chunk("return {10, 20, x = 'y'}")));
    assert!(matches!(machine.run(1_000), Outcome::Done));
    let Value::Table(table) = machine.values()[0] else { panic!("no table") };
    assert_eq!((machine.len(table), machine.get_index(table, 2)), (2, Value::Number(20.0)));
    let field = machine.get_field(table, "x");
    assert_eq!(machine.bytes_of(field), Some(&b"y"[..]));
    let mut pairs = 0;
    let mut key = Value::Nil;
    while let Some((next, _)) = machine.next(table, key) {
        key = next;
        pairs += 1;
    }
    assert_eq!(pairs, 3);
    assert_eq!(machine.get(table, Value::Number(3.0)), Value::Nil);
}

#[test]
fn there_is_no_room_beyond_the_limit() {
    let limits = Limits { max_bytes: 100 << 10, ..Limits::default() };
    let mut machine = machine(limits);
    assert_eq!(machine.string(&[b'x'; 200 << 10]), None);
    assert_eq!(machine.table(1 << 20, 0), None);
    let big = format!("return {{{}}}", (0..9_000).map(|n| format!("'{n}',")).collect::<String>());
    assert!(!machine.start(&chunk(&big)));
    machine.reset();
    assert!(machine.start(&chunk("return 1")));
    assert!(matches!(machine.run(10_000), Outcome::Done));
}

#[test]
fn what_the_host_makes_is_collected_and_costs_no_steps_twice() {
    let mut machine = machine(Limits { max_bytes: 2 << 20, ..Limits::default() });
    assert!(machine.start(&chunk("local n = 0 for i = 1, 1000 do n = n + #print(i) end return n")));
    let mut answers = 0;
    loop {
        let before = machine.used();
        match machine.run(100_000) {
            Outcome::Call(_) => {
                answers += 1;
                let value = machine.string(format!("{answers:05}{}", "x".repeat(9_995)).as_bytes()).unwrap();
                machine.answer(&[value]);
            }
            Outcome::Done => break,
            Outcome::OutOfFuel => {}
            Outcome::Failed(failure) => panic!("{}", text(&machine, failure.value.unwrap())),
        }
        assert!(machine.used() >= before && machine.used() - before < 200_000);
    }
    assert_eq!(machine.values(), [Value::Number(10_000_000.0)]);
    assert!(machine.peak_bytes() <= 2 << 20);
}

#[test]
fn the_host_s_work_is_paid_from_the_next_run() {
    let mut machine = machine(Limits::default());
    assert!(machine.start(&chunk("return #print()")));
    assert!(matches!(machine.run(1_000), Outcome::Call(PRINT)));
    let text = machine.string(&vec![b'x'; 1 << 20]).unwrap();
    machine.answer(&[text]);
    let before = machine.used();
    assert!(matches!(machine.run(1_000), Outcome::OutOfFuel));
    assert!(machine.used() - before > 50_000, "{}", machine.used() - before);
    assert!(matches!(machine.run(1_000_000), Outcome::Done));
    assert!(machine.used() - before < 500_000, "once, and no more");
}

/// What is larger than it may be is not begun, and no script catches that.
#[test]
fn what_takes_long_at_once_is_not_begun() {
    const MOST: usize = 1 << 16;
    for (source, fits) in [
        ("return #('x'):rep(6e4)", true),
        ("return #('x'):rep(7e4)", false),
        ("return pcall(string.rep, 'x', 7e4)", false),
        ("local s = ('x'):rep(4e4) return #(s .. s)", false),
        ("local s = print()", false),
        ("local t = {} for n = 1, 1e4 do t[n] = n end", false),
        ("local t = {} for n = 1, 1e3 do t[n] = n end", true),
    ] {
        let mut machine = machine(Limits::default());
        machine.limit_at_once(MOST);
        assert!(machine.start(&chunk(source)));
        let failed = loop {
            match machine.run(1_000_000) {
                Outcome::Call(_) => break machine.string(&vec![b'x'; MOST + 1]).is_none(),
                Outcome::Done => break false,
                Outcome::Failed(failure) => break failure.value.is_none(),
                Outcome::OutOfFuel => {}
            }
        };
        assert_eq!((failed, machine.wants_more()), (!fits, !fits), "{source}");
        machine.limit_at_once(usize::MAX);
        assert!(!machine.wants_more());
    }
}

#[test]
fn what_stays_loaded_has_a_bound() {
    let mut machine = machine(Limits::default());
    let mut sources = 0;
    for n in 0..40 {
        let source = chunk(&format!("local a = {n} {}return a", "a = a + 1 ".repeat(20_000)));
        sources += source.bytes();
        for _ in 0..2 {
            assert!(machine.start(&source));
            assert!(matches!(machine.run(1_000_000), Outcome::Done));
            machine.reset();
        }
        assert!(machine.loaded_bytes() <= (4 << 20) && Arc::strong_count(&source) == 1, "{}", machine.loaded_bytes());
    }
    assert!(sources > 5 << 20, "{sources}");
}
