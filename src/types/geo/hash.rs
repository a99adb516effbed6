//! Position ↔ score, the cells of the grid, GEOHASH's text.
//!
//! Longitude and latitude are each cut into 2^`step` equal parts. Number of the part of longitude in the odd bits, of
//! latitude in the even ones, together number a cell. A score is the number of a cell at step 26, 52 bits, which a double
//! holds exactly; the cells within a coarser cell are one range of scores.
//!
//! Redis cuts the latitudes at ±85.05112878°, as web maps do. Public geohashes reach to ±90°: [`text`] converts.

use std::ops::Range;

/// Highest longitude, degrees.
pub const LONGITUDE_MAX: f64 = 180.0;
/// Highest latitude, degrees.
pub const LATITUDE_MAX: f64 = 85.051_128_78;
/// Cuts of each axis in a score.
pub const STEP_MAX: u32 = 26;
/// Characters of GEOHASH's text.
pub const TEXT_LEN: usize = 11;

const PUBLIC_LATITUDE_MAX: f64 = 90.0;
const EVEN_BITS: u64 = 0x5555_5555_5555_5555;

/// A position, degrees.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Position {
    /// East is positive.
    pub longitude: f64,
    /// North is positive.
    pub latitude: f64,
}

impl Position {
    /// Whether a score can hold it.
    pub fn is_valid(self) -> bool {
        self.longitude.abs() <= LONGITUDE_MAX && self.latitude.abs() <= LATITUDE_MAX
    }

    /// The score of a valid position. At the easternmost longitude, which has a part of its own, the number of the cell
    /// takes 54 bits, and the last two are rounded.
    pub fn score(self) -> f64 {
        Cell::at(self, STEP_MAX).bits as f64
    }

    /// The middle of a score's cell. From a score that is no cell's number, some position comes out, the same as in Redis.
    pub fn from_score(score: f64) -> Position {
        const TWO_64: f64 = 18_446_744_073_709_551_616.0;
        // As x86-64 turns doubles into unsigned integers: those below zero wrap, those too high are zero.
        let bits = match score {
            ..0.0 => score as i64 as u64,
            TWO_64.. => 0,
            _ => score as u64,
        };
        let area = Cell { bits, step: STEP_MAX }.area();
        let middle = |range: Range<f64>, max: f64| ((range.start + range.end) / 2.0).clamp(-max, max);
        Position { longitude: middle(area.longitude, LONGITUDE_MAX), latitude: middle(area.latitude, LATITUDE_MAX) }
    }
}

/// What a cell covers, degrees.
#[derive(Debug, Clone, PartialEq)]
pub struct Area {
    /// From west to east.
    pub longitude: Range<f64>,
    /// From south to north.
    pub latitude: Range<f64>,
}

/// A cell of the grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cell {
    /// Its number.
    pub bits: u64,
    /// Cuts of each axis, 1 to 26.
    pub step: u32,
}

impl Cell {
    /// The cell that holds a valid position.
    pub fn at(position: Position, step: u32) -> Cell {
        Cell { bits: number(position, LATITUDE_MAX, step), step }
    }

    /// What it covers.
    pub fn area(self) -> Area {
        let cuts = (1u64 << self.step) as f64;
        let range = |part: u32, max: f64| {
            let edge = |part: f64| -max + part * 1.0 / cuts * (max - -max);
            edge(f64::from(part))..edge(f64::from(part) + 1.0)
        };
        Area {
            longitude: range(collect(self.bits >> 1), LONGITUDE_MAX),
            latitude: range(collect(self.bits), LATITUDE_MAX),
        }
    }

    /// The cell so many parts east and north of it, −1 to 1; the grid's edges join. The part beyond the last one counts
    /// as the first on an axis that moves, and stays on one that does not.
    pub fn neighbour(self, east: i32, north: i32) -> Cell {
        let mask = (1u64 << self.step) - 1;
        let moved = |bits: u64, by: i32| match by {
            0 => collect(bits),
            by => (u64::from(collect(bits)).wrapping_add_signed(by.into()) & mask) as u32,
        };
        let bits = spread(moved(self.bits >> 1, east)) << 1 | spread(moved(self.bits, north));
        Cell { bits, ..self }
    }

    /// The scores of all positions in it.
    pub fn scores(self) -> Range<u64> {
        let shift = 2 * (STEP_MAX - self.step);
        self.bits << shift..(self.bits + 1) << shift
    }
}

/// The number of a position's cell on a grid that ends at these latitudes.
fn number(position: Position, latitude_max: f64, step: u32) -> u64 {
    let cuts = (1u64 << step) as f64;
    // The highest position has a part of its own, beyond the last one.
    let part = |degrees: f64, max: f64| ((degrees - -max) / (max - -max) * cuts) as u32;
    spread(part(position.longitude, LONGITUDE_MAX)) << 1 | spread(part(position.latitude, latitude_max))
}

/// Moves the bits to the even places.
const fn spread(bits: u32) -> u64 {
    let mut x = bits as u64;
    x = (x | x << 16) & 0x0000_ffff_0000_ffff;
    x = (x | x << 8) & 0x00ff_00ff_00ff_00ff;
    x = (x | x << 4) & 0x0f0f_0f0f_0f0f_0f0f;
    x = (x | x << 2) & 0x3333_3333_3333_3333;
    (x | x << 1) & EVEN_BITS
}

/// The bits at the even places.
const fn collect(bits: u64) -> u32 {
    let mut x = bits & EVEN_BITS;
    x = (x | x >> 1) & 0x3333_3333_3333_3333;
    x = (x | x >> 2) & 0x0f0f_0f0f_0f0f_0f0f;
    x = (x | x >> 4) & 0x00ff_00ff_00ff_00ff;
    x = (x | x >> 8) & 0x0000_ffff_0000_ffff;
    (x | x >> 16) as u32
}

/// The public geohash of a score: base 32, five bits a character. 52 bits end within the eleventh, which is always 0.
pub fn text(score: f64) -> [u8; TEXT_LEN] {
    const ALPHABET: &[u8; 32] = b"0123456789bcdefghjkmnpqrstuvwxyz";
    let bits = number(Position::from_score(score), PUBLIC_LATITUDE_MAX, STEP_MAX);
    let mut text = [b'0'; TEXT_LEN];
    for (at, character) in text[..TEXT_LEN - 1].iter_mut().enumerate() {
        *character = ALPHABET[(bits >> (47 - 5 * at) & 31) as usize];
    }
    text
}
