//! `cjson`, `cmsgpack`, `struct` and `bit` answer as those of Redis 8.2.3; numbers print and read as C's.

use super::semantics::check_cases;
use super::*;

#[test]
fn libraries_answer_as_on_the_real_server() {
    check_cases(include_str!("libraries.txt"), u64::MAX);
}

#[test]
fn libraries_may_be_interrupted_after_every_step() {
    check_cases(include_str!("libraries.txt"), 1);
}

#[test]
fn chance_is_that_of_redis() {
    // What a server that was just started answers to its first three calls.
    assert_eq!(run("print(math.random(1000000), math.random(1000000), math.random(100))"), "396465\t840486\t36\n");
    assert_eq!(run("math.randomseed(0) print(math.random(100), math.random(100), math.random(100))"), "18\t75\t10\n");
}

#[test]
fn settings_of_cjson_end_with_the_script() {
    let limits = Limits::default();
    let mut machine = machine(limits);
    let set = Chunk::compile(b"cjson.encode_max_depth(1) cjson.new().encode_max_depth(1)", "@s", &limits).unwrap();
    let get = Chunk::compile(b"print(cjson.encode_max_depth())", "@s", &limits).unwrap();
    assert!(machine.start(&set));
    assert_eq!(finish(&mut machine, u64::MAX), b"");
    machine.reset();
    assert!(machine.start(&get));
    assert_eq!(finish(&mut machine, u64::MAX), b"1000\n");
}

#[test]
fn numbers_print_and_read_as_in_c() {
    use super::super::number;
    for (n, expected) in [
        (0.1, "0.1"),
        (1e14, "1e+14"),
        (99_999_999_999_999.0, "99999999999999"),
        (123_456_789_012_345.0, "1.2345678901234e+14"),
        (1e-5, "1e-05"),
        (-0.0, "-0"),
        (f64::INFINITY, "inf"),
        (f64::NEG_INFINITY, "-inf"),
        (5e-324, "4.9406564584125e-324"),
        (f64::MAX, "1.7976931348623e+308"),
    ] {
        let mut text = Vec::new();
        number::print(n, &mut text);
        assert_eq!(String::from_utf8(text).unwrap(), expected);
    }
    for (text, expected) in [
        ("0x1p4", Some(16.0)),
        ("0x.8", Some(0.5)),
        ("0X1P-2", Some(0.25)),
        ("0xfffffffffffffffff", Some(295_147_905_179_352_830_000.0)),
        ("0x1p99999", Some(f64::INFINITY)),
        ("0x1p-99999", Some(0.0)),
        (" \t12\n", Some(12.0)),
        ("1e5x", None),
        ("0x", None),
        ("e5", None),
        ("1_000", None),
        ("-.5e+1", Some(-5.0)),
    ] {
        assert_eq!(number::parse(text.as_bytes()), expected, "{text}");
    }
}
