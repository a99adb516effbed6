//! Replies and errors expected here are those of Redis 8.2.3 to the same bytes.

use proptest::prelude::*;
use redis_protocol::resp2::{decode::decode, types::OwnedFrame};

use super::*;

/// Commands, each a list of arguments.
type Commands = Vec<Vec<Vec<u8>>>;

/// Everything a connection would read from `input` if it arrived in chunks that end at `cuts`: the commands before the
/// first error, and that error. Consumed bytes are dropped before every second chunk, as a connection may.
fn read(input: &[u8], cuts: &[usize], limits: &Limits) -> (Commands, Option<ProtocolError>) {
    let mut parser = Parser::default();
    let (mut buf, mut at, mut received) = (Vec::new(), 0, 0);
    let mut commands = Vec::new();
    for (turn, &cut) in cuts.iter().chain([&input.len()]).enumerate() {
        if turn % 2 == 1 {
            buf.drain(..at);
            at = 0;
        }
        buf.extend_from_slice(&input[received..cut]);
        received = cut;
        loop {
            let mut spans = vec![(7, 7)];
            let outcome = parser.parse(&mut buf, at, limits, &mut spans);
            assert_eq!(spans.remove(0), (7, 7));
            match outcome {
                Err(error) => {
                    assert!(spans.is_empty());
                    return (commands, Some(error));
                }
                Ok(None) => {
                    assert!(spans.is_empty());
                    break;
                }
                Ok(Some(end)) => {
                    assert!(end > at && end <= buf.len());
                    assert!(spans.iter().all(|span| span.0 as usize >= at && span.1 as usize <= end));
                    at = end;
                    let arg = |&(start, end): &Span| buf[start as usize..end as usize].to_vec();
                    commands.push(spans.iter().map(arg).collect());
                }
            }
        }
    }
    (commands, None)
}

fn encode<A: AsRef<[u8]>>(args: &[A]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args.iter().map(AsRef::as_ref) {
        out.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        out.extend_from_slice(arg);
        out.extend_from_slice(b"\r\n");
    }
    out
}

/// Reads `input` whole and cut in two at every byte (if it is short), and expects the same each time: either words of
/// commands or, in the end, an error.
#[track_caller]
fn check_with(limits: &Limits, input: &[u8], commands: &[&[&str]], error: Option<&str>) {
    let cut_max = if input.len() < 1000 { input.len() } else { 0 };
    for cut in 0..=cut_max {
        let (got, got_error) = read(input, &[cut], limits);
        let shown = |words: &Vec<Vec<u8>>| words.iter().map(|word| word.escape_ascii().to_string()).collect();
        let got: Vec<Vec<String>> = got.iter().map(shown).collect();
        let short = input[..input.len().min(60)].escape_ascii();
        assert_eq!(got, commands, "{short} cut at {cut}");
        let got_error = got_error.map(|error| String::from_utf8_lossy(&error.text()).into_owned());
        let error = error.map(|error| format!("ERR Protocol error: {error}"));
        assert_eq!(got_error, error, "{short} cut at {cut}");
    }
}

#[track_caller]
fn check(input: &[u8], commands: &[&[&str]]) {
    check_with(&Limits::default(), input, commands, None);
}

#[track_caller]
fn check_error(input: &[u8], error: &str) {
    check_with(&Limits::default(), input, &[], Some(error));
}

#[test]
fn well_formed() {
    check(b"*1\r\n$4\r\nPING\r\n", &[&["PING"]]);
    check(b"*2\r\n$3\r\nGET\r\n$0\r\n\r\n*1\r\n$1\r\n*\r\n", &[&["GET", ""], &["*"]]);
    check(b"*2\r\n$2\r\n\r\n\r\n$3\r\n$1\r\r\n", &[&["\\r\\n", "$1\\r"]]);
    check(&encode(&["x"; 12]), &[&["x"; 12]]);
}

#[test]
fn empty_requests() {
    check(b"*-1\r\n*0\r\n*-5\r\n*-10\r\n*1\r\n$4\r\nPING\r\n", &[&[], &[], &[], &[], &["PING"]]);
    check(b"*-9223372036854775808\r\n\r\n\n   \r\n*0\r\n", &[&[], &[], &[], &[], &[]]);
}

#[test]
fn only_the_cr_of_line_ends_counts() {
    check(b"*1\rx$4\rxPING\r\n*1\r\n$4\r\nPINGxx", &[&["PING"], &["PING"]]);
    check(b"*1\r\n$4\r\nPING\n\n", &[&["PING"]]);
    check(b"*1\n$4\nPING\n", &[]);
    check_error(b"*1\r$4\rPING\r", "expected '$', got '4'");
    check_error(b"*1\nx$4\nxPING\r\n", "invalid multibulk length");
}

#[test]
fn malformed_counts() {
    for count in
        ["", "abc", "1048577", "2147483648", "99999999999999999999", "-9223372036854775809", "+1", "01", "00", " 1"]
    {
        check_error(format!("*{count}\r\n").as_bytes(), "invalid multibulk length");
    }
    check_error(b"*1 \r\n", "invalid multibulk length");
    check_error(b"*-0\r\n", "invalid multibulk length");
    check_error(b"*1\0\r\n", "invalid multibulk length");
    check(b"*1048576\r\n", &[]);
}

#[test]
fn malformed_lengths() {
    for length in ["", "-1", "abc", "536870913", "04", "-0", "+4", "99999999999999999999", "4294967295"] {
        check_error(format!("*1\r\n${length}\r\n").as_bytes(), "invalid bulk length");
        check_error(format!("*2\r\n$1\r\nx\r\n${length}\r\n").as_bytes(), "invalid bulk length");
    }
    check(b"*1\r\n$536870912\r\n", &[]);
    let unlimited = Limits { max_bulk: usize::MAX, ..Limits::default() };
    check_with(&unlimited, b"*1\r\n$4294967000\r\n", &[], None);
    check_with(&unlimited, b"*1\r\n$9223372036854775807\r\n", &[], Some("invalid bulk length"));
}

#[test]
fn wrong_types() {
    check_error(b"*3\r\n$3\r\nSET\r\n$1\r\nx\r\nfoo\r\n", "expected '$', got 'f'");
    check_error(b"*1\r\n+PING\r\n", "expected '$', got '+'");
    check_error(b"*1\r\n'\r\n", "expected '$', got '''");
    check_error(b"*1\r\n:1\r\n", "expected '$', got ':'");
    check_error(b"*1\r\n\r\n", "expected '$', got '\r'");
    check(b"*1\r\nx", &[]);
    assert_eq!(ProtocolError::ExpectedBulk(0xff).text(), b"ERR Protocol error: expected '$', got '\xff'");
}

#[test]
fn lines_without_end() {
    let long = |start: &str, len: usize| [start.as_bytes(), &b"1".repeat(len - start.len())].concat();
    let count = "too big mbulk count string";
    check(&long("*", LINE_MAX), &[]);
    check_error(&long("*", LINE_MAX + 1), count);
    let length = "too big bulk count string";
    check(&long("*1\r\n$", LINE_MAX + 4), &[]);
    check_error(&long("*1\r\n$", LINE_MAX + 5), length);
    check_error(&long("*2\r\n$4\r\nPING\r\n$", LINE_MAX + 15), length);
    let inline = "too big inline request";
    check(&long("a", LINE_MAX), &[]);
    check_error(&long("a", LINE_MAX + 1), inline);
    check_with(&Limits::default(), &long("PING\r\na", LINE_MAX + 7), &[&["PING"]], Some(inline));
}

#[test]
fn little_is_allowed_before_authentication() {
    let limits = Limits { unauthenticated: true, ..Limits::default() };
    let check = |input: &[u8], error| check_with(&limits, input, &[], error);
    check(b"*10\r\n$16384\r\n", None);
    check(b"*11\r\n", Some("unauthenticated multibulk length"));
    check(b"*1\r\n$16385\r\n", Some("unauthenticated bulk length"));
    check(b"*1\r\n$536870913\r\n", Some("invalid bulk length"));
    check(b"*11x\r\n", Some("invalid multibulk length"));
    check_with(
        &limits,
        b"PING 1 2 3 4 5 6 7 8 9 10 11\r\n",
        &[&["PING", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11"]],
        None,
    );
}

#[test]
fn inline_words() {
    check(b"PING\r\nPING\nPING\r\r\n", &[&["PING"], &["PING"], &["PING"]]);
    check(b"PI\rNG\r\n", &[&["PI", "NG"]]);
    check(b"\x0b\tPING\x0b\x0chi\r\n", &[&["PING\\x0b\\x0chi"]]);
    check(b"$4\r\n", &[&["$4"]]);
    check(b"PING \x1c \xff\r\n", &[&["PING", "\\x1c", "\\xff"]]);
    check(b"a\0b 'c\0d'\n", &[&["a\\x00b", "c\\x00d"]]);
}

#[test]
fn inline_quotes() {
    check(br#"PING "\xff\x0g\n\r\t\b\a\q\"""#, &[]);
    check(b"\"\\xff\\x0g\\n\\r\\t\\b\\a\\q\\\"\"\r\n", &[&["\\xffx0g\\n\\r\\t\\x08\\x07q\\\""]]);
    check(b"PING 'a\\'b\\n'\r\n", &[&["PING", "a\\'b\\\\n"]]);
    check(b"PING a\"b c\" x\r\n", &[&["PING", "ab c", "x"]]);
    check(b"PING \"\"\r\nPING ''\r\n\"\"\r\n", &[&["PING", ""], &["PING", ""], &[""]]);
    check(b"PING \"\\xFf\" \"\\xf\" \"a\"\x0b'b'\x0c\r\n", &[&["PING", "\\xff", "xf", "a", "b"]]);
    for line in [
        "PING \"a",
        "PING 'a",
        "PING \"a\"b",
        "PING a\"b\"c",
        "ping \"\\",
        "ping \"\\\"",
        "ping 'a\\",
        "ping 'a'b",
        "PING a'b",
        "\"",
    ] {
        check_error(format!("{line}\r\n").as_bytes(), "unbalanced quotes in request");
    }
}

#[test]
fn missing_bytes_are_known_within_an_argument() {
    let (mut parser, mut spans) = (Parser::default(), Vec::new());
    let mut input = encode(&[&b"SET"[..], b"k", &[b'v'; 1000]]);
    let mut feed = |len: usize| {
        assert_eq!(parser.parse(&mut input[..len], 0, &Limits::default(), &mut spans), Ok(None), "{len}");
        (parser.missing(), parser.in_request())
    };
    assert_eq!(feed(2), (0, false));
    assert_eq!(feed(4), (0, true));
    assert_eq!(feed(10), (3, true));
    assert_eq!(feed(11), (2, true));
    assert_eq!(feed(25), (0, true));
    assert_eq!(feed(27), (1002, true));
    assert_eq!(feed(28), (1001, true));
    assert_eq!(feed(1028), (1, true));
    let end = parser.parse(&mut input, 0, &Limits::default(), &mut spans);
    assert_eq!((end, spans.len(), parser.missing(), parser.in_request()), (Ok(Some(1029)), 3, 0, false));
}

/// A million arguments announced and none sent, or many tiny ones: memory follows the bytes, not the announcement, and
/// is given back.
#[test]
fn announcements_allocate_nothing() {
    let (mut parser, mut spans) = (Parser::default(), Vec::new());
    let mut input = b"*1048576\r\n$536870912\r\n".to_vec();
    assert_eq!(parser.parse(&mut input, 0, &Limits::default(), &mut spans), Ok(None));
    assert_eq!((parser.spans.capacity(), spans.capacity()), (0, 0));
    let mut input = encode(&[""; 20_000]);
    let len = input.len();
    let mut parser = Parser::default();
    assert_eq!(parser.parse(&mut input[..len - 1], 0, &Limits::default(), &mut spans), Ok(None));
    assert!(parser.spans.len() == 19_999 && spans.is_empty());
    assert_eq!(parser.parse(&mut input, 0, &Limits::default(), &mut spans), Ok(Some(len)));
    assert!(parser.spans.capacity() <= SPANS_KEPT && spans.len() == 20_000);
}

/// Bytes that look like requests more often than random ones.
fn fragments() -> impl Strategy<Value = Vec<u8>> {
    let fragment = prop_oneof![
        Just(b"*1\r\n$4\r\nPING\r\n".to_vec()),
        Just(b"*2\r\n$1\r\na\r\n$3\r\nb\r\n\r\n".to_vec()),
        Just(b"\r\n".to_vec()),
        Just(b"$3\r\nfoo\r\n".to_vec()),
        "\\*-?[0-3]{1,2}\r\n".prop_map(String::into_bytes),
        "[a-c\"'\\\\x \t]{0,8}\r?\n".prop_map(String::into_bytes),
        prop::collection::vec(any::<u8>(), 0..6),
    ];
    prop::collection::vec(fragment, 0..12).prop_map(|parts| parts.concat())
}

fn cuts(len: usize) -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(0..=len, 0..20).prop_map(|mut cuts| {
        cuts.sort_unstable();
        cuts
    })
}

proptest! {
    #[test]
    fn commands_come_back(
        (commands, cuts) in prop::collection::vec(prop::collection::vec(prop::collection::vec(any::<u8>(), 0..120), 1..14), 0..6)
            .prop_flat_map(|commands| {
                let len = commands.iter().map(|command| encode(command).len()).sum();
                (Just(commands), cuts(len))
            })
    ) {
        let input: Vec<u8> = commands.iter().flat_map(|command| encode(command)).collect();
        prop_assert_eq!(read(&input, &cuts, &Limits::default()), (commands.clone(), None));
        let mut rest = &input[..];
        for command in commands {
            let (frame, len) = decode(rest).unwrap().unwrap();
            rest = &rest[len..];
            prop_assert_eq!(frame, OwnedFrame::Array(command.into_iter().map(OwnedFrame::BulkString).collect()));
        }
    }

    #[test]
    fn chunks_make_no_difference((input, cuts) in fragments().prop_flat_map(|input| (Just(input.clone()), cuts(input.len())))) {
        let whole = read(&input, &[], &Limits::default());
        prop_assert_eq!(&read(&input, &cuts, &Limits::default()), &whole);
        let every: Vec<usize> = (0..input.len()).collect();
        prop_assert_eq!(&read(&input, &every, &Limits::default()), &whole);
    }
}
