//! FUNCTION DUMP's payload: for each library `245` and its code as a string, then `version:2` and `checksum:8` as in the payload
//! of a value.

use super::length::{Source, push_string, read_string};
use super::{RdbError, frame};

/// What stands in front of each library.
const FUNCTION: u8 = 245;
/// What stood there in a release candidate of Redis 7.0.
const PRE_GA: u8 = 246;
/// Read from Redis 7.0 on, the first that has functions.
const VERSION: u16 = 10;

/// Why a payload of libraries cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FunctionsError {
    /// Too short, of a version that is not known, or its checksum is wrong.
    Frame,
    /// It holds something else.
    OtherType,
    /// It is of a release candidate.
    PreGa,
    /// A string is cut off or makes no sense.
    Corrupt,
    /// The codes take more than there is room for.
    TooLarge,
}

/// The codes of the libraries in a payload, if they take no more than `room` bytes.
///
/// # Errors
/// See [`FunctionsError`].
pub fn decode_functions(payload: &[u8], room: usize) -> Result<Vec<Vec<u8>>, FunctionsError> {
    let (_, body) = frame::open(payload).map_err(|_| FunctionsError::Frame)?;
    let mut source = Source::new(body, room);
    let mut codes = Vec::new();
    while !source.is_empty() {
        match source.u8() {
            Ok(FUNCTION) => {}
            Ok(PRE_GA) => return Err(FunctionsError::PreGa),
            _ => return Err(FunctionsError::OtherType),
        }
        let code = read_string(&mut source).map_err(|error| match error {
            RdbError::TooLarge => FunctionsError::TooLarge,
            _ => FunctionsError::Corrupt,
        })?;
        codes.push(code);
    }
    Ok(codes)
}

/// The payload of libraries with these codes.
pub fn encode_functions<'a>(codes: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut payload = Vec::new();
    for code in codes {
        payload.push(FUNCTION);
        push_string(code, &mut payload);
    }
    frame::close(0, VERSION, &mut payload);
    payload
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// As Redis 8.2 answers FUNCTION DUMP; the second code is compressed there.
    const OF_REDIS: &[u8] = b"\xf5@C#!lua name=fa\nredis.register_function(\"f1\",function() return 1 end)\x0c\x00X\x0f\xdc\xca\xc5\xba\xc9\xaf";
    const COMPRESSED: &[u8] = b"\xf5\xc3@G@Q\x1f#!lua name=fxe\nredis.register_fu\x07nction({\xc0\t\x00_`*\n1,callback=\xc0\x18\x07() end})\xf5>#!lua name='fxq'\nredis.register_function('fxh',function() end)\xf5@K#!lua name=fxlib\nredis.register_function('fxf', function(k,a) return 1 end)\xf5@J#!LUA name=fxup\nredis.register_function('fxg', function(k,a) return 1 end)\x0c\x00\xd3\xa6\xb0\xc6\x93\x0e\xe1\xd4";

    #[test]
    fn what_redis_dumps_is_read() {
        let code = b"#!lua name=fa\nredis.register_function(\"f1\",function() return 1 end)".to_vec();
        assert_eq!(decode_functions(OF_REDIS, 1 << 20), Ok(vec![code]));
        let codes = decode_functions(COMPRESSED, 1 << 20).unwrap();
        assert_eq!(codes[0], b"#!lua name=fxe\nredis.register_function({function_name=1,callback=function() end})");
        assert_eq!(codes.len(), 4);
        assert_eq!(decode_functions(COMPRESSED, 200), Err(FunctionsError::TooLarge));
        assert_eq!(decode_functions(b"\x0c\x00\x96\xedh\x80\xf5U<\x93", 100), Ok(vec![]), "nothing");
    }

    #[test]
    fn bytes_are_pinned() {
        assert_eq!(encode_functions([&b"abc"[..]])[..7], *b"\xf5\x03abc\x0a\x00");
        assert_eq!(encode_functions([])[..2], *b"\x0a\x00");
    }

    #[test]
    fn what_is_no_library_is_refused() {
        let framed = |body: &[u8]| {
            let mut payload = body.to_vec();
            frame::close(0, VERSION, &mut payload);
            decode_functions(&payload, 1 << 20)
        };
        assert_eq!(framed(b"\x00abc"), Err(FunctionsError::OtherType));
        assert_eq!(framed(b"\xf6\x03foo"), Err(FunctionsError::PreGa));
        assert_eq!(framed(b"\xf5"), Err(FunctionsError::Corrupt));
        assert_eq!(framed(b"\xf5\x20abc"), Err(FunctionsError::Corrupt));
        assert_eq!(decode_functions(b"x", 10), Err(FunctionsError::Frame));
        assert_eq!(decode_functions(&OF_REDIS[..OF_REDIS.len() - 1], 1 << 20), Err(FunctionsError::Frame));
    }

    proptest! {
        #[test]
        fn codes_return(codes in vec(vec(any::<u8>(), 0..100), 0..5)) {
            let payload = encode_functions(codes.iter().map(Vec::as_slice));
            prop_assert_eq!(decode_functions(&payload, 1 << 20), Ok(codes));
        }

        #[test]
        fn random_bytes_never_panic(body in vec(any::<u8>(), 0..60)) {
            let mut payload = [&[FUNCTION][..], &body].concat();
            frame::close(0, VERSION, &mut payload);
            let _ = decode_functions(&payload, 1 << 10);
            let _ = decode_functions(&body, 1 << 10);
        }
    }
}
