//! Replies of Redis 8.2.3, and of Valkey 9.1.2 for polygons, line by line in `testdata/`.
#![expect(clippy::unwrap_used, reason = "tests")]

use proptest::prelude::*;

use super::distance::{Printed, Unit, metres, metres_of_latitude};
use super::hash::{Cell, LATITUDE_MAX, LONGITUDE_MAX, Position, STEP_MAX, text};
use super::options::{Form, Member, Order, Search, Store, parse};
use super::shape::Shape;
use crate::error::Result;
use crate::resp::OwnedArgs;
use crate::util::num::format_double;

fn number(word: &str) -> f64 {
    word.parse().unwrap()
}

fn position(longitude: &str, latitude: &str) -> Position {
    Position { longitude: number(longitude), latitude: number(latitude) }
}

fn printed(position: Position) -> [String; 2] {
    [position.longitude, position.latitude].map(|degrees| format_double(degrees).to_string())
}

fn geohash(score: f64) -> String {
    String::from_utf8(text(score).to_vec()).unwrap()
}

/// The scores of the members, by their numbers.
fn scores() -> Vec<u64> {
    let lines = include_str!("testdata/positions.txt").lines();
    lines.map(|line| line.split(' ').nth(2).unwrap().parse().unwrap()).collect()
}

#[test]
fn scores_and_positions() {
    for line in include_str!("testdata/positions.txt").lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let score = position(words[0], words[1]).score();
        assert_eq!(format!("{score:.0}"), words[2], "{line}");
        assert_eq!(geohash(score), words[3], "{line}");
        assert_eq!(printed(Position::from_score(score)), words[4..6], "{line}");
    }
}

#[test]
fn scores_that_are_no_positions() {
    for line in include_str!("testdata/odd_scores.txt").lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let score = number(words[0]);
        assert_eq!(printed(Position::from_score(score)), words[1..3], "{line}");
        assert_eq!(geohash(score), words[3], "{line}");
    }
}

#[test]
fn distances_in_all_units() {
    let scores = scores();
    for line in include_str!("testdata/distances.txt").lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [a, b] = [words[0], words[1]].map(|at| Position::from_score(scores[at.parse::<usize>().unwrap()] as f64));
        let unit = Unit::read(words[2].as_bytes()).unwrap();
        assert_eq!(Printed(metres(a, b) / unit.metres()).to_string(), words[3], "{line}");
    }
    assert_eq!(Unit::read(b"Mi"), Some(Unit::Mile));
    assert_eq!(Unit::read(b"miles"), None);
}

fn read<'a>(args: &'a OwnedArgs, source: &str) -> Result<Search<'a>> {
    let args = args.as_args();
    let form = match args[0].to_ascii_lowercase().as_slice() {
        b"georadius" => Form::Radius,
        b"georadius_ro" => Form::RadiusRo,
        b"georadiusbymember" => Form::RadiusByMember,
        b"georadiusbymember_ro" => Form::RadiusByMemberRo,
        b"geosearch" => Form::Search,
        _ => Form::SearchStore,
    };
    assert_eq!(&args[form.source()], source.as_bytes());
    parse(args, form, |name| {
        Ok(match (source, name) {
            ("nokey", _) => Member::NoSource,
            (_, b"Palermo") => Member::Score(3_479_099_956_230_698.0),
            _ => Member::Absent,
        })
    })
}

fn words(line: &str) -> OwnedArgs {
    line.split(' ').map(str::as_bytes).collect()
}

#[test]
fn arguments_and_their_errors() {
    for line in include_str!("testdata/options.txt").lines() {
        let mut columns = line.split('\t');
        let (source, command, expected) = (columns.next().unwrap(), columns.next().unwrap(), columns.next().unwrap());
        let got = read(&words(command), source).map_or_else(|error| error.text().into_owned(), |_| "OK".to_owned());
        assert_eq!(got, expected, "{command}");
    }
}

#[test]
fn arguments_mean_what_they_say() {
    let args = words("geosearch g ANY count 3 bybox 2 4 KM Desc fromlonlat 1 2 WITHDIST withcoord");
    let search = read(&args, "g").unwrap();
    let centre = Position { longitude: 1.0, latitude: 2.0 };
    assert_eq!(
        search,
        Search {
            shape: Some(Shape::rectangle(centre, 2000.0, 4000.0)),
            unit: Unit::Kilometre,
            order: Some(Order::Descending),
            count: Some(3),
            any: true,
            with_distance: true,
            with_hash: false,
            with_position: true,
            store: None,
        }
    );
    let args = words("GEORADIUS g 1 2 3 m COUNT 1 STORE a STOREDIST b");
    let search = read(&args, "g").unwrap();
    assert_eq!((search.order, search.any), (Some(Order::Ascending), false));
    assert_eq!(search.store, Some(Store { key: b"b", distances: true }));
    assert_eq!(search.shape, Some(Shape::circle(centre, 3.0)));
    let args = words("GEOSEARCHSTORE d g FROMMEMBER Palermo BYRADIUS 1 mi STOREDIST");
    let search = read(&args, "g").unwrap();
    assert_eq!(search.store, Some(Store { key: b"d", distances: true }));
    assert_eq!(printed(search.shape.unwrap().centre()), ["13.361389338970184", "38.1155563954963"]);
    let args = words("GEORADIUSBYMEMBER nokey m x y STORE d");
    let search = read(&args, "nokey").unwrap();
    assert_eq!((search.shape, search.store), (None, Some(Store { key: b"d", distances: false })));
}

/// Members in the order of the cells, each with its distance.
fn found(search: &Search<'_>, members: &[(u64, usize)]) -> Vec<String> {
    let mut found = Vec::new();
    let shape = search.shape.as_ref().unwrap();
    for cell in shape.cells() {
        let scores = cell.scores();
        let from = members.partition_point(|(score, _)| *score < scores.start);
        for (score, member) in members[from..].iter().take_while(|(score, _)| *score < scores.end) {
            if let Some(distance_m) = shape.distance_m(Position::from_score(*score as f64)) {
                found.push(format!("{member}:{}", Printed(distance_m / search.unit.metres())));
            }
        }
    }
    found
}

fn check_searches(lines: &str) {
    let mut members: Vec<_> = scores().into_iter().enumerate().map(|(member, score)| (score, member)).collect();
    // Equal scores in the order of their names.
    members.sort_by_key(|(score, member)| (*score, member.to_string()));
    for line in lines.lines() {
        let (options, expected) = line.split_once(" =").unwrap();
        let args = words(&format!("GEOSEARCH g {options}"));
        let search = read(&args, "g").unwrap();
        assert_eq!(found(&search, &members), expected.split_whitespace().collect::<Vec<_>>(), "{options}");
    }
}

#[test]
fn circles_and_boxes_find_what_redis_finds() {
    check_searches(include_str!("testdata/searches.txt"));
}

#[test]
fn polygons_find_what_valkey_finds() {
    check_searches(include_str!("testdata/polygons.txt"));
}

fn any_position() -> impl Strategy<Value = Position> {
    (-LONGITUDE_MAX..LONGITUDE_MAX, -LATITUDE_MAX..LATITUDE_MAX)
        .prop_map(|(longitude, latitude)| Position { longitude, latitude })
}

/// Not farther than this from the meridian and the equator, degrees.
fn position_within(most: f64) -> impl Strategy<Value = Position> {
    (-most..most, -most..most).prop_map(|(longitude, latitude)| Position { longitude, latitude })
}

proptest! {
    #[test]
    fn a_score_is_within_a_metre(position in any_position()) {
        let again = Position::from_score(position.score());
        prop_assert!(metres(position, again) < 1.0);
        prop_assert_eq!(again.score(), position.score());
    }

    #[test]
    fn cells_nest_and_neighbours_are_mutual(
        position in any_position(),
        step in 1..=STEP_MAX,
        east in -1..=1,
        north in -1..=1,
    ) {
        let cell = Cell::at(position, step);
        prop_assert!(cell.scores().contains(&(position.score() as u64)));
        prop_assert_eq!(cell.neighbour(east, north).neighbour(-east, -north), cell);
    }

    /// Away from poles and date line, the cover misses nothing that lies within.
    #[test]
    fn cells_cover_the_shape(
        longitude in -120.0..120.0f64,
        latitude in -60.0..60.0f64,
        size in 0.0..5.5f64,
        aside in -1.0..1.0f64,
        up in -1.0..1.0f64,
        kind in 0..3,
    ) {
        let centre = Position { longitude, latitude };
        let size_m = 10f64.powf(size);
        let degrees = size_m / 111_000.0;
        let vertex = |x: f64, y: f64| Position { longitude: longitude + x * degrees, latitude: latitude + y * degrees };
        let shape = match kind {
            0 => Shape::circle(centre, size_m),
            1 => Shape::rectangle(centre, size_m, size_m * 2.0),
            _ => Shape::polygon(vec![vertex(-1.0, -1.0), vertex(1.0, -0.5), vertex(0.2, 1.0)]),
        };
        prop_assert!(is_covered(&shape, vertex(aside, up)), "{:?}", shape);
    }

    /// Up to the whole earth: no member comes twice.
    #[test]
    fn cells_are_named_once(centre in any_position(), size in 0.0..9.0f64, flat in 0.0..9.0f64) {
        let [size_m, flat_m] = [size, flat].map(|size| 10f64.powf(size));
        for shape in [Shape::circle(centre, size_m), Shape::rectangle(centre, size_m, flat_m)] {
            prop_assert!(are_named_once(&shape.cells()), "{:?}", shape);
        }
    }

    /// Up to continents; what goes around the earth has no inside to speak of.
    #[test]
    fn cells_cover_any_polygon(
        vertices in proptest::collection::vec(position_within(50.0), 3..8),
        points in proptest::collection::vec(position_within(60.0), 20),
    ) {
        let shape = Shape::polygon(vertices);
        for point in points {
            prop_assert!(is_covered(&shape, point), "{:?} {:?}", shape, point);
        }
        prop_assert!(are_named_once(&shape.cells()), "no member comes twice");
    }
}

fn are_named_once(cells: &[Cell]) -> bool {
    cells.iter().enumerate().all(|(n, cell)| !cells[..n].contains(cell))
}

/// Whether the shape's cells hold a point, if the shape does.
fn is_covered(shape: &Shape, point: Position) -> bool {
    let score = point.score();
    let seen = || shape.cells().iter().any(|cell| cell.scores().contains(&(score as u64)));
    shape.distance_m(Position::from_score(score)).is_none() || seen()
}

#[test]
fn printed_distances() {
    for (distance, expected) in [(0.0, "0.0000"), (0.00005, "0.0000"), (0.00025, "0.0002"), (1e7, "10000000.0000")] {
        assert_eq!(Printed(distance).to_string(), expected);
    }
    assert_eq!(metres_of_latitude(10.0, -10.0), metres_of_latitude(-10.0, 10.0));
}
