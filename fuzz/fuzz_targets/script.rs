//! Source text from anywhere compiles or is refused, and what compiles stays within its steps and bytes, also when it is
//! interrupted, dropped on the way, and followed by another script.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tarn::lua::{Chunk, HostItem, Limits, Machine, Outcome};

const MAX_BYTES: usize = 4 << 20;
const FUEL: u64 = 20_000;

fuzz_target!(|data: &[u8]| {
    let limits = Limits { max_bytes: MAX_BYTES, max_string: 1 << 20, max_source: 1 << 16 };
    let Ok(chunk) = Chunk::compile(data, "@fuzz", &limits) else { return };
    let items = vec![("redis.call".to_string(), HostItem::Function(1))];
    let mut machine = Machine::new(limits, items.into());
    for fuel in [FUEL, 7] {
        if !machine.start(&chunk) {
            return;
        }
        let mut left = 4 * FUEL / fuel;
        while left > 0 {
            left -= 1;
            match machine.run(fuel) {
                Outcome::OutOfFuel => {}
                Outcome::Call(_) if left % 2 == 0 => machine.fail_text(b"no", true),
                Outcome::Call(_) => machine.answer(&[]),
                Outcome::Done | Outcome::Failed(_) => break,
            }
        }
        assert!(machine.peak_bytes() <= MAX_BYTES);
        machine.reset();
    }
    let next = Chunk::compile(b"return #('x'):rep(10)", "@next", &limits).unwrap();
    assert!(machine.start(&next) && matches!(machine.run(100_000), Outcome::Done));
});
