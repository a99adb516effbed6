//! Metres between positions, units.

use std::fmt;

use super::hash::Position;

/// Radius of the earth as Redis has it, metres.
pub const EARTH_RADIUS_M: f64 = 6_372_797.560_856;

/// Degrees → radians, with Redis's rounding.
pub fn radians(degrees: f64) -> f64 {
    degrees * (std::f64::consts::PI / 180.0)
}

/// Radians → degrees, with Redis's rounding.
pub fn degrees(radians: f64) -> f64 {
    radians / (std::f64::consts::PI / 180.0)
}

/// Metres along the great circle between two positions, by the haversine formula.
pub fn metres(a: Position, b: Position) -> f64 {
    let v = ((radians(b.longitude) - radians(a.longitude)) / 2.0).sin();
    if v == 0.0 {
        return metres_of_latitude(a.latitude, b.latitude);
    }
    let (a_latitude, b_latitude) = (radians(a.latitude), radians(b.latitude));
    let u = ((b_latitude - a_latitude) / 2.0).sin();
    let haversine = u * u + a_latitude.cos() * b_latitude.cos() * v * v;
    2.0 * EARTH_RADIUS_M * haversine.sqrt().asin()
}

/// Metres between two latitudes on one meridian.
pub fn metres_of_latitude(a: f64, b: f64) -> f64 {
    EARTH_RADIUS_M * (radians(b) - radians(a)).abs()
}

/// A unit of distance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "units say what they are")]
pub enum Unit {
    #[default]
    Metre,
    Kilometre,
    Foot,
    Mile,
}

impl Unit {
    /// By its abbreviation, in any case.
    pub fn read(word: &[u8]) -> Option<Unit> {
        [(&b"m"[..], Unit::Metre), (b"km", Unit::Kilometre), (b"ft", Unit::Foot), (b"mi", Unit::Mile)]
            .into_iter()
            .find_map(|(name, unit)| word.eq_ignore_ascii_case(name).then_some(unit))
    }

    /// Metres in one.
    pub const fn metres(self) -> f64 {
        match self {
            Unit::Metre => 1.0,
            Unit::Kilometre => 1000.0,
            Unit::Foot => 0.3048,
            Unit::Mile => 1609.34,
        }
    }
}

/// A distance as replies print it: four decimal places.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Printed(pub f64);

impl fmt::Display for Printed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Redis rounds the product, which is not always the nearest to the exact value.
        let units = (self.0 * 10_000.0).round_ties_even() as u64;
        write!(f, "{}.{:04}", units / 10_000, units % 10_000)
    }
}
