//! One HyperLogLog in memory, whatever its encoding.

use super::estimate::{self, Histogram};
use super::format::{COUNT_AT, ENCODING_AT, Encoding, HEADER, REGISTERS, STALE, STALE_AT};
use super::sparse::{self, Hint, Raised};
use super::{dense, hash};
use crate::handler::Result;

/// A whole HyperLogLog whose header is sound.
#[derive(Debug, Clone)]
pub struct HyperLogLog {
    bytes: Vec<u8>,
    encoding: Encoding,
    sparse_max_bytes: usize,
    hint: Hint,
}

impl HyperLogLog {
    /// One without elements, sparse.
    pub fn new(sparse_max_bytes: usize) -> Self {
        HyperLogLog::of(sparse::empty(), Encoding::Sparse, sparse_max_bytes)
    }

    /// One of these bytes, whose header says `encoding`. While sparse it grows no longer than `sparse_max_bytes`.
    pub fn of(bytes: Vec<u8>, encoding: Encoding, sparse_max_bytes: usize) -> Self {
        HyperLogLog { bytes, encoding, sparse_max_bytes, hint: Hint::default() }
    }

    /// The string to be stored.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Its encoding now.
    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// Says that the count in the header no longer holds.
    pub fn mark_stale(&mut self) {
        self.bytes[STALE_AT] |= STALE;
    }

    /// Adds an element; whether a register changed.
    ///
    /// # Errors
    /// [`CORRUPT`](super::format::CORRUPT).
    pub fn add(&mut self, element: &[u8]) -> Result<bool> {
        let (register, rank) = hash::place(element);
        self.hint = Hint::default();
        self.raise(register, rank)
    }

    /// Raises every register to what `registers` holds.
    ///
    /// # Errors
    /// [`CORRUPT`](super::format::CORRUPT).
    pub fn raise_all(&mut self, registers: &Registers) -> Result {
        self.hint = Hint::default();
        for (register, &rank) in registers.0.iter().enumerate().filter(|(_, rank)| **rank > 0) {
            self.raise(register, rank)?;
        }
        Ok(())
    }

    /// Raises a register; the caller sees to the hint.
    fn raise(&mut self, register: usize, rank: u8) -> Result<bool> {
        if self.encoding == Encoding::Sparse {
            match sparse::raise(&mut self.bytes, register, rank, self.sparse_max_bytes, &mut self.hint)? {
                Raised::TooMuch => self.make_dense()?,
                raised => return Ok(raised == Raised::Yes),
            }
        }
        let rises = dense::get(&self.bytes, register) < rank;
        if rises {
            dense::set(&mut self.bytes, register, rank);
        }
        Ok(rises)
    }

    /// Turns it dense if it is not; the header keeps all but the encoding.
    ///
    /// # Errors
    /// [`CORRUPT`](super::format::CORRUPT).
    pub fn make_dense(&mut self) -> Result {
        if self.encoding == Encoding::Sparse {
            let mut registers = Registers::default();
            registers.merge(&self.bytes, Encoding::Sparse)?;
            self.bytes = dense::pack(&self.bytes[..HEADER], &registers.0);
            self.bytes[ENCODING_AT] = Encoding::Dense as u8;
            self.encoding = Encoding::Dense;
        }
        Ok(())
    }
}

/// A count as the header holds it.
pub fn count_bytes(count: u64) -> [u8; HEADER - COUNT_AT] {
    count.to_le_bytes()
}

/// The number of elements of a stored HyperLogLog, by its registers.
///
/// # Errors
/// [`CORRUPT`](super::format::CORRUPT).
pub fn count(bytes: &[u8], encoding: Encoding) -> Result<u64> {
    let mut histogram: Histogram = [0; 64];
    match encoding {
        Encoding::Dense => dense::each(bytes, |rank| histogram[rank as usize] += 1),
        Encoding::Sparse => {
            for run in sparse::runs(bytes) {
                let run = run?;
                histogram[run.rank as usize] += run.len as u32;
            }
        }
    }
    Ok(estimate::elements(&histogram))
}

/// All registers, a byte each: several HyperLogLogs together.
#[derive(Debug, Clone)]
pub struct Registers(Box<[u8]>);

impl Default for Registers {
    fn default() -> Self {
        Registers(vec![0; REGISTERS].into())
    }
}

impl Registers {
    /// Raises the registers to those of a stored HyperLogLog.
    ///
    /// # Errors
    /// [`CORRUPT`](super::format::CORRUPT).
    pub fn merge(&mut self, bytes: &[u8], encoding: Encoding) -> Result {
        match encoding {
            Encoding::Dense => {
                let mut registers = self.0.iter_mut();
                dense::each(bytes, |rank| {
                    if let Some(register) = registers.next() {
                        *register = rank.max(*register);
                    }
                });
            }
            Encoding::Sparse => {
                let mut at = 0;
                for run in sparse::runs(bytes) {
                    let run = run?;
                    let registers = &mut self.0[at..at + run.len];
                    at += run.len;
                    if run.rank > 0 {
                        registers.iter_mut().for_each(|register| *register = run.rank.max(*register));
                    }
                }
            }
        }
        Ok(())
    }

    /// The number of elements.
    pub fn count(&self) -> u64 {
        let mut histogram: Histogram = [0; 64];
        for &rank in &self.0 {
            histogram[usize::from(rank & 63)] += 1;
        }
        estimate::elements(&histogram)
    }

    /// The values in order.
    pub fn as_slice(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::super::format::{DENSE_LEN, encoding};
    use super::*;
    use proptest::prelude::*;
    use sha2::{Digest as _, Sha256};

    fn registers(hll: &HyperLogLog) -> Registers {
        let mut registers = Registers::default();
        registers.merge(hll.bytes(), hll.encoding()).unwrap();
        registers
    }

    /// What `PFADD h e:0 e:1 …` leaves in Redis 8.2.3: number of elements, `hll-sparse-max-bytes`, length and the first
    /// bytes of SHA-256 of the string.
    #[test]
    fn the_same_bytes_as_in_redis() {
        for line in include_str!("bytes_cases.txt").lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let mut hll = HyperLogLog::new(words[1].parse().unwrap());
            for n in 0..words[0].parse::<u32>().unwrap() {
                hll.add(format!("e:{n}").as_bytes()).unwrap();
            }
            hll.mark_stale();
            let sum = Sha256::digest(hll.bytes());
            let sum: String = sum[..8].iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!((hll.bytes().len().to_string().as_str(), sum.as_str()), (words[2], words[3]), "{line}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Sparse, dense and a plain array agree after every step; headers stay sound.
        #[test]
        fn encodings_agree(
            steps in proptest::collection::vec((0..REGISTERS, 1..52u8, 0..4usize), 1..400),
            max_bytes in prop_oneof![Just(0usize), 16..200usize, Just(3000), Just(40_000)],
        ) {
            let (mut sparse, mut dense) = (HyperLogLog::new(max_bytes), HyperLogLog::new(0));
            dense.make_dense().unwrap();
            let mut plain = vec![0u8; REGISTERS];
            for (register, rank, near) in steps {
                // Neighbours, so that runs are joined and split.
                let register = if near > 0 { register % 40 } else { register };
                let rank = if near > 1 { rank % 3 + 1 } else { rank };
                let rises = plain[register] < rank;
                sparse.hint = Hint::default();
                prop_assert_eq!(sparse.raise(register, rank).unwrap(), rises);
                prop_assert_eq!(dense.raise(register, rank).unwrap(), rises);
                plain[register] = plain[register].max(rank);
            }
            prop_assert!(registers(&sparse).as_slice() == plain);
            prop_assert!(registers(&dense).as_slice() == plain);
            prop_assert_eq!(encoding(sparse.bytes(), sparse.bytes().len()), Ok(sparse.encoding()));
            prop_assert_eq!(encoding(dense.bytes(), DENSE_LEN), Ok(Encoding::Dense));
            let counted = count(sparse.bytes(), sparse.encoding()).unwrap();
            prop_assert_eq!(counted, count(dense.bytes(), Encoding::Dense).unwrap());
            prop_assert_eq!(counted, registers(&sparse).count());
        }

        /// The hint of ascending registers changes nothing.
        #[test]
        fn a_hint_only_saves_time(
            start in proptest::collection::vec((0..300usize, 1..4u8), 0..200),
            ranks in proptest::collection::vec(0..4u8, 300),
        ) {
            let mut hinted = HyperLogLog::new(3000);
            for (register, rank) in start {
                hinted.hint = Hint::default();
                hinted.raise(register, rank).unwrap();
            }
            let mut plain = hinted.clone();
            let mut all = Registers::default();
            all.0[..300].copy_from_slice(&ranks);
            hinted.raise_all(&all).unwrap();
            for (register, &rank) in ranks.iter().enumerate().filter(|(_, rank)| **rank > 0) {
                plain.hint = Hint::default();
                plain.raise(register, rank).unwrap();
            }
            prop_assert_eq!(hinted.bytes(), plain.bytes());
        }

        /// Whatever a client puts behind a header is either understood or refused.
        #[test]
        fn corrupt_registers_are_refused(
            tail in proptest::collection::vec(any::<u8>(), 0..300),
            register in 0..REGISTERS,
            rank in 1..52u8,
        ) {
            let mut bytes = super::super::format::header(Encoding::Sparse).to_vec();
            bytes.extend_from_slice(&tail);
            let counted = count(&bytes, Encoding::Sparse);
            let mut hll = HyperLogLog::of(bytes, Encoding::Sparse, 3000);
            let raised = hll.raise(register, rank);
            let dense = hll.make_dense();
            prop_assert!(counted.is_err() || (raised.is_ok() && dense.is_ok()));
        }
    }

    #[test]
    fn runs_that_do_not_cover_the_registers() {
        let header = super::super::format::header(Encoding::Sparse);
        for (tail, sound) in [
            (&[0x7f, 0xff][..], true),
            (&[], false),
            (&[0x7f], false),
            (&[0x7f, 0xfe], false),
            (&[0x7f, 0xfe, 0x00], true),
            (&[0x7f, 0xfe, 0x80], true),
            (&[0x7f, 0xfe, 0x81], false),
            (&[0x7f, 0xff, 0x00], false),
            (&[0x7f, 0xff, 0x40], false),
        ] {
            let bytes = [&header[..], tail].concat();
            assert_eq!(count(&bytes, Encoding::Sparse).is_ok(), sound, "{tail:x?}");
        }
    }
}
