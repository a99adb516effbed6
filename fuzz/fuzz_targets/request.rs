//! The request parser against itself and against another one.
//!
//! The input's first byte says whether the client is authenticated, its second seeds the lengths of chunks; the rest is
//! what the client sends. Read whole and read in chunks, it must give the same commands and the
//! same error; and where redis-protocol finds a well-formed command, so must the parser, with the same arguments.
#![no_main]

use libfuzzer_sys::fuzz_target;
use redis_protocol::resp2::{decode::decode, types::OwnedFrame};
use tarn::resp::{Args, Limits, OwnedArgs, Parser, ProtocolError};

/// redis-protocol recurses on nested arrays until the stack ends, so it sees only inputs with few of them.
const ARRAYS_MAX: usize = 1000;

type Outcome = (Vec<Vec<Vec<u8>>>, Option<ProtocolError>);

fuzz_target!(|input: &[u8]| {
    let [flags, seed, input @ ..] = input else { return };
    let limits = Limits { unauthenticated: flags & 1 != 0, ..Limits::default() };
    let whole = read(input, &limits, &mut || usize::MAX);
    let mut state = u64::from(*seed);
    let in_chunks = read(input, &limits, &mut || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        1 + (state >> 60) as usize
    });
    assert_eq!(whole, in_chunks);
    if input.iter().filter(|&&byte| byte == b'*').count() <= ARRAYS_MAX {
        check_against_redis_protocol(input);
    }
});

/// All commands in `input`, which arrives in chunks of the lengths given, and the error that ends them.
fn read(input: &[u8], limits: &Limits, chunk_len: &mut dyn FnMut() -> usize) -> Outcome {
    let (mut parser, mut buf, mut at, mut rest) = (Parser::default(), Vec::new(), 0, input);
    let (mut commands, mut spans) = (Vec::new(), Vec::new());
    while !rest.is_empty() {
        let len = chunk_len();
        if len % 3 == 0 {
            buf.drain(..at);
            at = 0;
        }
        let (chunk, later) = rest.split_at(len.min(rest.len()));
        buf.extend_from_slice(chunk);
        rest = later;
        loop {
            spans.clear();
            match parser.parse(&mut buf, at, limits, &mut spans) {
                Ok(Some(end)) => {
                    assert!(at < end && end <= buf.len());
                    at = end;
                }
                Ok(None) => {
                    assert!(spans.is_empty());
                    // Never asks for more than the limit and the line end.
                    assert!(parser.missing() <= limits.max_bulk + 2);
                    break;
                }
                Err(error) => return (commands, Some(error)),
            }
            let args = Args::new(&buf, &spans);
            let owned = OwnedArgs::from(args);
            assert!(owned.as_args().iter().eq(args.iter()));
            commands.push(args.iter().map(<[u8]>::to_vec).collect());
        }
    }
    (commands, None)
}

/// redis-protocol takes frames that are no commands and numbers Redis does not, so only its plain commands are compared:
/// those that are as long as their canonical encoding.
fn check_against_redis_protocol(input: &[u8]) {
    let Ok(Some((OwnedFrame::Array(frames), len))) = decode(input) else { return };
    let args: Option<Vec<Vec<u8>>> = frames
        .into_iter()
        .map(|frame| match frame {
            OwnedFrame::BulkString(arg) => Some(arg),
            _ => None,
        })
        .collect();
    let Some(args) = args else { return };
    let mut canonical = format!("*{}\r\n", args.len()).into_bytes();
    for arg in &args {
        canonical.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        canonical.extend_from_slice(arg);
        canonical.extend_from_slice(b"\r\n");
    }
    if canonical != input[..len] {
        return;
    }
    let (commands, error) = read(&canonical, &Limits::default(), &mut || usize::MAX);
    assert_eq!((commands, error), (vec![args], None));
}
