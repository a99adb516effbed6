//! What is searched for, the cells that cover it, what lies within.
//!
//! | shape | centre | holds a position if |
//! |---|---|---|
//! | circle | given | it is no farther from the centre than the radius |
//! | box | given | neither its latitude is farther than half the height, nor, along its latitude, its longitude than half the width |
//! | polygon | mean of the vertices on the sphere | a line due east from it, on the plain map, crosses the edges an odd number of times |
//!
//! The cover is the cell of the centre and its neighbours, at the finest step at which they surely reach far enough.
//! Members come out in the order of [`Shape::cells`], which is Redis's.

use super::distance::{EARTH_RADIUS_M, degrees, metres, metres_of_latitude, radians};
use super::hash::{Area, Cell, Position, STEP_MAX};

/// Half of the equator as the mercator projection has it, metres.
const MERCATOR_MAX_M: f64 = 20_037_726.37;

/// What is searched for.
#[derive(Debug, Clone, PartialEq)]
pub struct Shape {
    centre: Position,
    outline: Outline,
}

#[derive(Debug, Clone, PartialEq)]
enum Outline {
    Circle { radius_m: f64 },
    Box { width_m: f64, height_m: f64 },
    Polygon(Vec<Position>),
}

/// Degrees of the smallest rectangle around a shape.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Bounds {
    west: f64,
    south: f64,
    east: f64,
    north: f64,
}

impl Shape {
    /// Everything within a radius.
    pub fn circle(centre: Position, radius_m: f64) -> Shape {
        Shape { centre, outline: Outline::Circle { radius_m } }
    }

    /// A rectangle whose sides lie along the meridians and parallels.
    pub fn rectangle(centre: Position, width_m: f64, height_m: f64) -> Shape {
        Shape { centre, outline: Outline::Box { width_m, height_m } }
    }

    /// A polygon of three vertices or more, closed from the last to the first.
    pub fn polygon(vertices: Vec<Position>) -> Shape {
        Shape { centre: mean(&vertices), outline: Outline::Polygon(vertices) }
    }

    /// From where distances are measured.
    pub fn centre(&self) -> Position {
        self.centre
    }

    /// Metres from the centre to a position within the shape; `None` outside.
    pub fn distance_m(&self, position: Position) -> Option<f64> {
        let far = || metres(self.centre, position);
        match &self.outline {
            Outline::Circle { radius_m } => Some(far()).filter(|distance| distance <= radius_m),
            Outline::Box { width_m, height_m } => {
                let same_latitude = Position { longitude: self.centre.longitude, ..position };
                let within = metres_of_latitude(position.latitude, self.centre.latitude) <= height_m / 2.0
                    && metres(position, same_latitude) <= width_m / 2.0;
                within.then(far)
            }
            Outline::Polygon(vertices) => is_inside(vertices, position).then(far),
        }
    }

    /// The cells that cover the shape, each once: at most nine, the centre's first.
    pub fn cells(&self) -> Vec<Cell> {
        let bounds = self.bounds();
        let mut step = steps(self.reach_m(&bounds), self.centre.latitude);
        let mut middle = Cell::at(self.centre, step);
        if step > 1 && !reaches(middle, &bounds) {
            step -= 1;
            middle = Cell::at(self.centre, step);
        }
        // Redis leaves it at that, which is enough for nearly all circles and boxes, but not for wide polygons.
        while step > 1 && matches!(self.outline, Outline::Polygon(_)) && !covers(middle, &bounds) {
            step -= 1;
            middle = Cell::at(self.centre, step);
        }
        let Area { longitude, latitude } = middle.area();
        // With so few cells the neighbours on both sides are the same ones, and come one after the other.
        let all = step < 2;
        let needed = |east: i32, north: i32| {
            all || !(north < 0 && latitude.start < bounds.south
                || north > 0 && latitude.end > bounds.north
                || east < 0 && longitude.start < bounds.west
                || east > 0 && longitude.end > bounds.east)
        };
        const AROUND: [(i32, i32); 8] = [(0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, 1), (1, -1), (-1, -1)];
        let mut cells = vec![middle];
        for (east, north) in AROUND {
            let cell = middle.neighbour(east, north);
            let repeated = cells.last() == Some(&cell);
            if needed(east, north) && !repeated {
                cells.push(cell);
            }
        }
        cells
    }

    fn bounds(&self) -> Bounds {
        let Position { longitude, latitude } = self.centre;
        let (width_m, height_m) = match &self.outline {
            Outline::Circle { radius_m } => (*radius_m, *radius_m),
            Outline::Box { width_m, height_m } => (width_m / 2.0, height_m / 2.0),
            Outline::Polygon(vertices) => return around(vertices),
        };
        let up = degrees(height_m / EARTH_RADIUS_M);
        // The side nearer to a pole spans more degrees.
        let widest = if latitude < 0.0 { latitude - up } else { latitude + up };
        let aside = degrees(width_m / EARTH_RADIUS_M / radians(widest).cos());
        Bounds { west: longitude - aside, south: latitude - up, east: longitude + aside, north: latitude + up }
    }

    /// Metres from the centre to the farthest point; of a polygon, to the farthest corner of its bounds.
    fn reach_m(&self, bounds: &Bounds) -> f64 {
        match &self.outline {
            Outline::Circle { radius_m } => *radius_m,
            Outline::Box { width_m, height_m } => {
                (width_m / 2.0 * (width_m / 2.0) + height_m / 2.0 * (height_m / 2.0)).sqrt()
            }
            Outline::Polygon(_) => {
                let Bounds { west, south, east, north } = *bounds;
                let corners = [(west, south), (west, north), (east, south), (east, north)];
                let distance = |(longitude, latitude)| metres(self.centre, Position { longitude, latitude });
                corners.into_iter().map(distance).fold(0.0, f64::max)
            }
        }
    }
}

/// The step at which a cell and its neighbours reach so many metres, in most cases.
fn steps(mut reach_m: f64, latitude: f64) -> u32 {
    if reach_m == 0.0 {
        return STEP_MAX;
    }
    let mut steps = 1i32;
    while reach_m < MERCATOR_MAX_M {
        reach_m *= 2.0;
        steps += 1;
    }
    // Two more, for what lies at the edge of its cell. Cells are narrow near the poles.
    let latitude = latitude.abs();
    steps -= 2 + i32::from(latitude > 66.0) + i32::from(latitude > 80.0);
    steps.clamp(1, STEP_MAX as i32) as u32
}

/// Whether the cells beside this one reach to the bounds on each side.
fn reaches(middle: Cell, bounds: &Bounds) -> bool {
    middle.neighbour(0, 1).area().latitude.end >= bounds.north
        && middle.neighbour(0, -1).area().latitude.start <= bounds.south
        && middle.neighbour(1, 0).area().longitude.end >= bounds.east
        && middle.neighbour(-1, 0).area().longitude.start <= bounds.west
}

/// Whether this cell and those beside it hold all within the bounds, without going round the earth.
fn covers(middle: Cell, bounds: &Bounds) -> bool {
    let Area { longitude, latitude } = middle.area();
    let (north, south) = (middle.neighbour(0, 1).area().latitude, middle.neighbour(0, -1).area().latitude);
    let (east, west) = (middle.neighbour(1, 0).area().longitude, middle.neighbour(-1, 0).area().longitude);
    latitude.end.max(north.end) >= bounds.north
        && latitude.start.min(south.start) <= bounds.south
        && longitude.end.max(east.end) >= bounds.east
        && longitude.start.min(west.start) <= bounds.west
}

fn around(vertices: &[Position]) -> Bounds {
    let nowhere =
        Bounds { west: f64::INFINITY, south: f64::INFINITY, east: f64::NEG_INFINITY, north: f64::NEG_INFINITY };
    vertices.iter().fold(nowhere, |bounds, vertex| Bounds {
        west: bounds.west.min(vertex.longitude),
        south: bounds.south.min(vertex.latitude),
        east: bounds.east.max(vertex.longitude),
        north: bounds.north.max(vertex.latitude),
    })
}

/// The direction of the sum of the vertices as vectors from the middle of the earth.
fn mean(vertices: &[Position]) -> Position {
    let (mut x, mut y, mut z) = (0.0, 0.0, 0.0);
    for vertex in vertices {
        let (longitude, latitude) = (radians(vertex.longitude), radians(vertex.latitude));
        x += latitude.cos() * longitude.cos();
        y += latitude.cos() * longitude.sin();
        z += latitude.sin();
    }
    let count = vertices.len() as f64;
    (x, y, z) = (x / count, y / count, z / count);
    Position { longitude: degrees(y.atan2(x)), latitude: degrees(z.atan2((x * x + y * y).sqrt())) }
}

/// Counts the edges that a line due east crosses.
fn is_inside(vertices: &[Position], position: Position) -> bool {
    let Some(&last) = vertices.last() else { return false };
    let (mut inside, mut from) = (false, last);
    for &to in vertices {
        let crosses_latitude = (to.latitude > position.latitude) != (from.latitude > position.latitude);
        if crosses_latitude
            && position.longitude
                < (from.longitude - to.longitude) * (position.latitude - to.latitude) / (from.latitude - to.latitude)
                    + to.longitude
        {
            inside = !inside;
        }
        from = to;
    }
    inside
}
