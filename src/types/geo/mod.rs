//! Positions on the earth, kept as the scores of sorted sets. Only the last two know of storage.
//!
//! | file | owns |
//! |---|---|
//! | [`hash`] | position ↔ score, the cells of the grid, GEOHASH's text |
//! | [`distance`] | metres between positions, units |
//! | [`shape`] | what is searched for, the cells that cover it, what lies within |
//! | [`options`] | the arguments of GEOSEARCH, GEORADIUS and their kin |
//! | [`command`] | GEOADD, GEODIST, GEOHASH, GEOPOS |
//! | [`find`] | GEOSEARCH, GEORADIUS and their kin |
//!
//! A search is: [`options::parse`], [`shape::Shape::cells`] as ranges of scores to be read in that order, and
//! [`shape::Shape::distance_m`] of each member found there.

pub mod command;
pub mod distance;
pub mod find;
pub mod hash;
pub mod options;
pub mod shape;

#[cfg(test)]
mod tests;
