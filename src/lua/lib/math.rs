//! `math`. Numbers by chance are those of Redis: its own `lrand48`, which does not differ between platforms.

use super::super::fault::Fault;
use super::super::value::Value;
use super::super::vm::{Args, Flow, NativeFn, Vm};

pub(in super::super) const FUNCTIONS: &[(&str, NativeFn)] = &[
    ("math.abs", |vm, args| one(vm, args, f64::abs)),
    ("math.acos", |vm, args| one(vm, args, f64::acos)),
    ("math.asin", |vm, args| one(vm, args, f64::asin)),
    ("math.atan", |vm, args| one(vm, args, f64::atan)),
    ("math.atan2", |vm, args| two(vm, args, f64::atan2)),
    ("math.ceil", |vm, args| one(vm, args, f64::ceil)),
    ("math.cos", |vm, args| one(vm, args, f64::cos)),
    ("math.cosh", |vm, args| one(vm, args, f64::cosh)),
    ("math.deg", |vm, args| one(vm, args, |x| x / RADIANS_PER_DEGREE)),
    ("math.exp", |vm, args| one(vm, args, f64::exp)),
    ("math.floor", |vm, args| one(vm, args, f64::floor)),
    ("math.fmod", |vm, args| two(vm, args, |x, y| x % y)),
    ("math.frexp", frexp),
    ("math.ldexp", ldexp),
    ("math.log", |vm, args| one(vm, args, f64::ln)),
    ("math.log10", |vm, args| one(vm, args, f64::log10)),
    ("math.max", |vm, args| fold(vm, args, |max, x| if x > max { x } else { max })),
    ("math.min", |vm, args| fold(vm, args, |min, x| if x < min { x } else { min })),
    ("math.mod", |vm, args| two(vm, args, |x, y| x % y)),
    ("math.modf", modf),
    ("math.pow", |vm, args| two(vm, args, f64::powf)),
    ("math.rad", |vm, args| one(vm, args, |x| x * RADIANS_PER_DEGREE)),
    ("math.random", random),
    ("math.randomseed", randomseed),
    ("math.sin", |vm, args| one(vm, args, f64::sin)),
    ("math.sinh", |vm, args| one(vm, args, f64::sinh)),
    ("math.sqrt", |vm, args| one(vm, args, f64::sqrt)),
    ("math.tan", |vm, args| one(vm, args, f64::tan)),
    ("math.tanh", |vm, args| one(vm, args, f64::tanh)),
];

const RADIANS_PER_DEGREE: f64 = std::f64::consts::PI / 180.0;

fn one(vm: &mut Vm, args: Args, f: fn(f64) -> f64) -> Result<Flow, Fault> {
    Ok(Flow::One(Value::Number(f(vm.check_number(args, 0)?))))
}

fn two(vm: &mut Vm, args: Args, f: fn(f64, f64) -> f64) -> Result<Flow, Fault> {
    // C looks at the last argument first.
    let y = vm.check_number(args, 1)?;
    Ok(Flow::One(Value::Number(f(vm.check_number(args, 0)?, y))))
}

fn fold(vm: &mut Vm, args: Args, f: fn(f64, f64) -> f64) -> Result<Flow, Fault> {
    let mut value = vm.check_number(args, 0)?;
    for n in 1..args.n {
        value = f(value, vm.check_number(args, n)?);
    }
    vm.heap.meter.work(args.n / 8);
    Ok(Flow::One(Value::Number(value)))
}

fn modf(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    let x = vm.check_number(args, 0)?;
    let fraction = if x.is_infinite() { 0.0f64.copysign(x) } else { (x - x.trunc()).copysign(x) };
    vm.push_all(&[Value::Number(x.trunc()), Value::Number(fraction)])?;
    Ok(Flow::Many(2))
}

fn frexp(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    let x = vm.check_number(args, 0)?;
    let (mut mantissa, mut exponent) = (x, 0);
    if x != 0.0 && x.is_finite() {
        // Subnormal numbers are scaled up first.
        if x.abs() < f64::MIN_POSITIVE {
            mantissa *= 2f64.powi(54);
            exponent -= 54;
        }
        let bits = mantissa.to_bits();
        exponent += (bits >> 52 & 0x7ff) as i32 - 1022;
        mantissa = f64::from_bits(bits & !(0x7ff << 52) | 1022 << 52);
    }
    vm.push_all(&[Value::Number(mantissa), Value::Number(f64::from(exponent))])?;
    Ok(Flow::Many(2))
}

fn ldexp(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    let mut exponent = vm.check_i32(args, 1)?.clamp(-4400, 4400);
    let mut value = vm.check_number(args, 0)?;
    // In steps that a double can hold, the last one being the one that may round.
    while exponent > 1000 {
        value *= 2f64.powi(1000);
        exponent -= 1000;
    }
    while exponent < -1000 {
        if value.abs() < f64::MIN_POSITIVE {
            break;
        }
        let step = (-exponent).min(900);
        let scaled = value * 2f64.powi(-step);
        if scaled.abs() < f64::MIN_POSITIVE * 2f64.powi(60) && exponent + step < 0 {
            break;
        }
        value = scaled;
        exponent += step;
    }
    if exponent < -1000 {
        value = value * 2f64.powi(exponent / 2) * 2f64.powi(exponent - exponent / 2);
    } else {
        value *= 2f64.powi(exponent);
    }
    Ok(Flow::One(Value::Number(value)))
}

/// Redis's generator of 48 bits.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Random(u64);

/// Redis divides by 2^31 - 1.
const RANGE: f64 = 2_147_483_647.0;

impl Random {
    pub(in super::super) fn new() -> Random {
        Random(0x1234_abcd_330e)
    }

    pub(in super::super) fn state(self) -> u64 {
        self.0
    }

    pub(in super::super) fn from_state(state: u64) -> Random {
        Random(state & 0xffff_ffff_ffff)
    }

    fn seed(seed: i32) -> Random {
        Random(u64::from(seed as u32) << 16 | 0x330e)
    }

    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(0x5_deec_e66d).wrapping_add(0xb) & 0xffff_ffff_ffff;
        let n = (self.0 >> 17) as i32;
        f64::from(n % i32::MAX) / RANGE
    }
}

fn random(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    let r = vm.random.next();
    let value = match args.n {
        0 => r,
        1 => {
            let upper = vm.check_i32(args, 0)?;
            if upper < 1 {
                return Err(Fault::arg(1, "interval is empty"));
            }
            (r * f64::from(upper)).floor() + 1.0
        }
        2 => {
            let (lower, upper) = (vm.check_i32(args, 0)?, vm.check_i32(args, 1)?);
            if lower > upper {
                return Err(Fault::arg(2, "interval is empty"));
            }
            (r * f64::from(upper.wrapping_sub(lower).wrapping_add(1))).floor() + f64::from(lower)
        }
        _ => return Err(Fault::lib("wrong number of arguments")),
    };
    Ok(Flow::One(Value::Number(value)))
}

fn randomseed(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    vm.random = Random::seed(vm.check_i32(args, 0)?);
    Ok(Flow::Nothing)
}
