//! The arguments of GEOSEARCH, GEORADIUS and their kin.
//!
//! | form | source | centre | shape | may store |
//! |---|---|---|---|---|
//! | GEORADIUS | 1 | 2, 3 | circle of 4, 5 | STORE, STOREDIST key |
//! | GEORADIUS_RO | 1 | 2, 3 | circle of 4, 5 | no |
//! | GEORADIUSBYMEMBER | 1 | member 2 | circle of 3, 4 | STORE, STOREDIST key |
//! | GEORADIUSBYMEMBER_RO | 1 | member 2 | circle of 3, 4 | no |
//! | GEOSEARCH | 1 | FROMMEMBER, FROMLONLAT | BYRADIUS, BYBOX, BYPOLYGON | no |
//! | GEOSEARCHSTORE | 2 | as GEOSEARCH | as GEOSEARCH | always, at 1 |
//!
//! The source's type is checked before anything here. A member is looked for where its argument stands, so its absence
//! comes before the mistakes that follow it. If the source is absent, no member is missing, and GEORADIUSBYMEMBER does
//! not even read the radius; all other arguments are checked as ever.

use super::distance::Unit;
use super::hash::Position;
use super::shape::Shape;
use crate::error::{Error, Result};
use crate::resp::Args;
use crate::resp::args::Cursor;
use crate::util::num;

/// Which command is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "named after the commands")]
pub enum Form {
    Radius,
    RadiusRo,
    RadiusByMember,
    RadiusByMemberRo,
    Search,
    SearchStore,
}

/// What the source says about a member.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Member {
    /// The source does not exist.
    NoSource,
    /// It has no such member.
    Absent,
    /// It has, with this score.
    Score(f64),
}

/// The order of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Nearest first.
    Ascending,
    /// Farthest first.
    Descending,
}

/// Where the result is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Store<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// With the distances as scores, not the positions.
    pub distances: bool,
}

/// A search as it was asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Search<'a> {
    /// What is searched; `None` if that depends on a member of a source that does not exist.
    pub shape: Option<Shape>,
    /// In which distances are told and stored.
    pub unit: Unit,
    /// The order, if one is asked for or follows from COUNT.
    pub order: Option<Order>,
    /// Most members to be found.
    pub count: Option<u64>,
    /// Any of them will do, in place of the first in order.
    pub any: bool,
    /// Reply with distances.
    pub with_distance: bool,
    /// Reply with scores.
    pub with_hash: bool,
    /// Reply with positions.
    pub with_position: bool,
    /// Store in place of a reply.
    pub store: Option<Store<'a>>,
}

/// Whence distances are measured.
#[derive(Clone, Copy, PartialEq)]
enum Centre {
    /// A position.
    At(Position),
    /// A member that cannot be looked for.
    Unknown,
}

/// How far a circle or a box reaches, metres.
#[derive(Clone, Copy)]
enum Reach {
    Radius(f64),
    Sides(f64, f64),
}

/// What has been read so far.
struct Reading<'a> {
    form: Form,
    search: Search<'a>,
    /// The centre, and whether it is a member.
    centre: Option<(Centre, bool)>,
    reach: Option<Reach>,
    polygon: Option<Vec<Position>>,
}

impl Form {
    fn is_search(self) -> bool {
        matches!(self, Form::Search | Form::SearchStore)
    }

    /// Whether STORE and STOREDIST take a key.
    fn names_store(self) -> bool {
        matches!(self, Form::Radius | Form::RadiusByMember)
    }

    /// Index of the source's key among the arguments.
    pub fn source(self) -> usize {
        if self == Form::SearchStore { 2 } else { 1 }
    }
}

/// Reads the arguments, the command's name included, of which there must be as many as its arity demands. `member` asks
/// the source for a member.
///
/// # Errors
/// Redis's, in Redis's order, and those of `member`.
pub fn parse<'a>(args: Args<'a>, form: Form, member: impl FnMut(&[u8]) -> Result<Member>) -> Result<Search<'a>> {
    let search = Search {
        shape: None,
        unit: Unit::default(),
        order: None,
        count: None,
        any: false,
        with_distance: false,
        with_hash: false,
        with_position: false,
        store: (form == Form::SearchStore).then(|| Store { key: args.get(1).unwrap_or_default(), distances: false }),
    };
    let mut reading = Reading { form, search, centre: None, reach: None, polygon: None };
    let mut member = member;
    let mut words = args.cursor(form.source() + 1);
    match form {
        Form::Radius | Form::RadiusRo => {
            reading.centre = Some((Centre::At(read_position(&mut words)?), false));
            reading.read_radius(&mut words)?;
        }
        Form::RadiusByMember | Form::RadiusByMemberRo => {
            let centre = find_member(words.arg()?, &mut member)?;
            reading.centre = Some((centre, true));
            if centre == Centre::Unknown {
                words = args.cursor(words.position() + 2);
            } else {
                reading.read_radius(&mut words)?;
            }
        }
        Form::Search | Form::SearchStore => {}
    }
    while !words.is_empty() {
        let known = reading.read_option(&mut words)? || reading.read_place(&mut words, &mut member)?;
        if !known {
            return Err(Error::Syntax);
        }
    }
    reading.finish(args.get(0).unwrap_or_default())
}

impl<'a> Reading<'a> {
    /// Reads an option that says what to do with what is found; whether there was one.
    fn read_option(&mut self, words: &mut Cursor<'a>) -> Result<bool> {
        let search = &mut self.search;
        if words.next_is(b"WITHDIST") {
            search.with_distance = true;
        } else if words.next_is(b"WITHHASH") {
            search.with_hash = true;
        } else if words.next_is(b"WITHCOORD") {
            search.with_position = true;
        } else if words.next_is(b"ANY") {
            search.any = true;
        } else if words.next_is(b"ASC") {
            search.order = Some(Order::Ascending);
        } else if words.next_is(b"DESC") {
            search.order = Some(Order::Descending);
        } else if words.next_is(b"COUNT") {
            let count = u64::try_from(words.int()?).ok().filter(|&count| count > 0);
            search.count = Some(count.ok_or(Error::err("ERR COUNT must be > 0"))?);
        } else if self.form.names_store() && words.next_is(b"STORE") {
            search.store = Some(Store { key: words.arg()?, distances: false });
        } else if self.form.names_store() && words.next_is(b"STOREDIST") {
            search.store = Some(Store { key: words.arg()?, distances: true });
        } else if self.form == Form::SearchStore && words.next_is(b"STOREDIST") {
            search.store.iter_mut().for_each(|store| store.distances = true);
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// Reads an option of GEOSEARCH that says where to search; whether there was one that may stand here.
    fn read_place(&mut self, words: &mut Cursor<'a>, member: &mut impl FnMut(&[u8]) -> Result<Member>) -> Result<bool> {
        if !self.form.is_search() {
            return Ok(false);
        }
        let (by_member, by_position) = match self.centre {
            Some((_, is_member)) => (is_member, !is_member),
            None => (false, false),
        };
        let left = words.remaining();
        let polygon = self.polygon.is_some();
        if !by_position && !polygon && left > 1 && words.next_is(b"FROMMEMBER") {
            self.centre = Some((find_member(words.arg()?, member)?, true));
        } else if !by_member && !polygon && left > 2 && words.next_is(b"FROMLONLAT") {
            self.centre = Some((Centre::At(read_position(words)?), false));
        } else if !polygon && !matches!(self.reach, Some(Reach::Sides(..))) && left > 2 && words.next_is(b"BYRADIUS") {
            self.read_radius(words)?;
        } else if !polygon && !matches!(self.reach, Some(Reach::Radius(_))) && left > 3 && words.next_is(b"BYBOX") {
            self.read_box(words)?;
        } else if self.centre.is_none() && self.reach.is_none() && left > 2 && words.next_is(b"BYPOLYGON") {
            self.polygon = Some(read_polygon(words)?);
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    fn read_radius(&mut self, words: &mut Cursor<'a>) -> Result {
        let radius = read_length(words, "ERR need numeric radius")?;
        if radius < 0.0 {
            return Err(Error::err("ERR radius cannot be negative"));
        }
        self.search.unit = read_unit(words.arg()?)?;
        self.reach = Some(Reach::Radius(radius * self.search.unit.metres()));
        Ok(())
    }

    fn read_box(&mut self, words: &mut Cursor<'a>) -> Result {
        let width = read_length(words, "ERR need numeric width")?;
        let height = read_length(words, "ERR need numeric height")?;
        if width < 0.0 || height < 0.0 {
            return Err(Error::err("ERR height or width cannot be negative"));
        }
        self.search.unit = read_unit(words.arg()?)?;
        let metres = self.search.unit.metres();
        self.reach = Some(Reach::Sides(width * metres, height * metres));
        Ok(())
    }

    /// Checks what goes together; `name` is the command's as the client wrote it.
    fn finish(self, name: &[u8]) -> Result<Search<'a>> {
        let Reading { form, mut search, centre, reach, polygon } = self;
        if search.store.is_some() && (search.with_distance || search.with_hash || search.with_position) {
            return Err(Error::err(if form == Form::SearchStore {
                "ERR GEOSEARCHSTORE is not compatible with WITHDIST, WITHHASH and WITHCOORD options"
            } else {
                "ERR STORE option in GEORADIUS is not compatible with WITHDIST, WITHHASH and WITHCOORD options"
            }));
        }
        let missing = |what: &str| {
            Err(Error::quoting(&format!("ERR exactly one of {what} can be specified for "), name, 128, ""))
        };
        if form.is_search() && polygon.is_none() && centre.is_none() {
            return missing("FROMMEMBER or FROMLONLAT");
        }
        if form.is_search() && polygon.is_none() && reach.is_none() {
            return missing("BYRADIUS and BYBOX");
        }
        if search.any && search.count.is_none() {
            return Err(Error::err("ERR the ANY argument requires COUNT argument"));
        }
        // The first few of no order would be hardly what is wanted.
        if search.count.is_some() && !search.any && search.order.is_none() {
            search.order = Some(Order::Ascending);
        }
        search.shape = match (polygon, centre, reach) {
            (Some(vertices), ..) => Some(Shape::polygon(vertices)),
            (None, Some((Centre::At(centre), _)), Some(Reach::Radius(radius_m))) => {
                Some(Shape::circle(centre, radius_m))
            }
            (None, Some((Centre::At(centre), _)), Some(Reach::Sides(width_m, height_m))) => {
                Some(Shape::rectangle(centre, width_m, height_m))
            }
            _ => None,
        };
        Ok(search)
    }
}

fn find_member(name: &[u8], member: &mut impl FnMut(&[u8]) -> Result<Member>) -> Result<Centre> {
    match member(name)? {
        Member::NoSource => Ok(Centre::Unknown),
        Member::Absent => Err(Error::err("ERR could not decode requested zset member")),
        Member::Score(score) => Ok(Centre::At(Position::from_score(score))),
    }
}

fn read_length(words: &mut Cursor<'_>, error: &'static str) -> Result<f64> {
    num::parse_double(words.arg()?).ok_or(Error::err(error))
}

/// A unit of distance.
///
/// # Errors
/// A text of its own.
pub fn read_unit(word: &[u8]) -> Result<Unit> {
    Unit::read(word).ok_or(Error::err("ERR unsupported unit provided. please use M, KM, FT, MI"))
}

/// A longitude and a latitude.
///
/// # Errors
/// `NotFloat`, or a text that names both if no score can hold them.
pub fn read_position(words: &mut Cursor<'_>) -> Result<Position> {
    let position = Position { longitude: words.float()?, latitude: words.float()? };
    if !position.is_valid() {
        let Position { longitude, latitude } = position;
        return Err(Error::Text(format!("ERR invalid longitude,latitude pair {longitude:.6},{latitude:.6}").into()));
    }
    Ok(position)
}

fn read_polygon(words: &mut Cursor<'_>) -> Result<Vec<Position>> {
    let count = num::parse_i64(words.arg()?)
        .filter(|count| i32::try_from(*count).is_ok())
        .ok_or(Error::err("ERR invalid number of vertices"))?;
    let fits = usize::try_from(count).ok().filter(|&count| count >= 3 && count <= words.remaining() / 2);
    let count = fits.ok_or(Error::err("ERR GEOSEARCH BYPOLYGON must have at least 3 vertices"))?;
    (0..count).map(|_| read_position(words)).collect()
}
