//! `table.sort`: Lua 5.1's quicksort, comparison by comparison, so that the order of equal elements and what an inconsistent
//! comparator makes of it are the same.

use super::super::cont::Cont;
use super::super::fault::Fault;
use super::super::meta::{self, Order, READONLY};
use super::super::value::{Tab, Value};
use super::super::vm::{Args, Flow, Input, Vm};

/// What the outcome of the comparison that is under way decides.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// a range begins; nothing is compared yet
    Begin,
    /// a[upper] < a[lower]
    Ends,
    /// a[middle] < a[lower]
    MiddleLower,
    /// a[upper] < a[middle]
    UpperMiddle,
    /// a[i] < pivot
    Up,
    /// pivot < a[j]
    Down,
}

#[derive(Debug)]
pub(in super::super) struct Sort {
    table: Tab,
    comparator: Value,
    lower: i64,
    upper: i64,
    i: i64,
    j: i64,
    pivot: Value,
    phase: Phase,
    /// The operands of the comparison.
    left: Value,
    right: Value,
    /// Ranges that are still to be sorted.
    rest: Vec<(i64, i64)>,
}

impl Sort {
    pub(in super::super) fn new(table: Tab, comparator: Value, n: i64) -> Sort {
        Sort {
            table,
            comparator,
            lower: 1,
            upper: n,
            i: 0,
            j: 0,
            pivot: Value::Nil,
            phase: Phase::Begin,
            left: Value::Nil,
            right: Value::Nil,
            rest: Vec::new(),
        }
    }

    pub(in super::super) fn values(&self) -> [Value; 5] {
        [Value::Table(self.table), self.comparator, self.pivot, self.left, self.right]
    }

    pub(in super::super) fn step(
        mut self: Box<Sort>,
        vm: &mut Vm,
        args: Args,
        results: Args,
        input: Input,
    ) -> Result<Flow, Fault> {
        if input != Input::Step {
            let hit = vm.arg(results, 0).truthy();
            vm.th.top = args.base + args.n;
            if !self.advance(vm, hit)? {
                return Ok(Flow::Nothing);
            }
        }
        self.run(vm)
    }

    /// Begins, or goes on with the comparison at hand.
    pub(in super::super) fn run(mut self: Box<Sort>, vm: &mut Vm) -> Result<Flow, Fault> {
        if matches!(self.phase, Phase::Begin) && !self.begin(vm) {
            return Ok(Flow::Nothing);
        }
        loop {
            if vm.heap.meter.fuel <= 0 {
                return Ok(Flow::Step(Cont::Sort(self)));
            }
            vm.heap.meter.work(4);
            let function = if self.comparator.is_nil() {
                match meta::less(vm, self.left, self.right)? {
                    Order::Known(hit) => {
                        if !self.advance(vm, hit)? {
                            return Ok(Flow::Nothing);
                        }
                        continue;
                    }
                    Order::Call(function, _) => function,
                }
            } else {
                self.comparator
            };
            let at = vm.th.top;
            vm.push_all(&[function, self.left, self.right])?;
            return Ok(Flow::Call(Cont::Sort(self), at, 2));
        }
    }

    fn get(&self, vm: &mut Vm, at: i64) -> Value {
        vm.heap.get_int(self.table, at)
    }

    fn set(&self, vm: &mut Vm, at: i64, value: Value) -> Result<(), Fault> {
        if vm.heap.table(self.table).readonly {
            return Err(Fault::run(READONLY));
        }
        vm.heap.raw_set_int(self.table, at, value)
    }

    fn swap(&self, vm: &mut Vm, a: i64, b: i64) -> Result<(), Fault> {
        let (x, y) = (self.get(vm, a), self.get(vm, b));
        self.set(vm, a, y)?;
        self.set(vm, b, x)
    }

    fn compare(&mut self, phase: Phase, left: Value, right: Value) {
        self.phase = phase;
        self.left = left;
        self.right = right;
    }

    /// The next range that is worth sorting; false if there is none.
    fn begin(&mut self, vm: &mut Vm) -> bool {
        while self.lower >= self.upper {
            match self.rest.pop() {
                Some((lower, upper)) => (self.lower, self.upper) = (lower, upper),
                None => return false,
            }
        }
        self.compare(Phase::Ends, self.get(vm, self.upper), self.get(vm, self.lower));
        true
    }

    fn end_range(&mut self, vm: &mut Vm) -> bool {
        self.lower = self.upper;
        self.begin(vm)
    }

    /// Takes the outcome of a comparison and prepares the next; false if all is sorted.
    fn advance(&mut self, vm: &mut Vm, hit: bool) -> Result<bool, Fault> {
        let middle = (self.lower + self.upper) / 2;
        match self.phase {
            Phase::Begin => return Ok(self.begin(vm)),
            Phase::Ends => {
                if hit {
                    self.swap(vm, self.lower, self.upper)?;
                }
                if self.upper - self.lower == 1 {
                    return Ok(self.end_range(vm));
                }
                self.compare(Phase::MiddleLower, self.get(vm, middle), self.get(vm, self.lower));
            }
            Phase::MiddleLower if hit => {
                self.swap(vm, middle, self.lower)?;
                return self.partition(vm, middle);
            }
            Phase::MiddleLower => {
                self.compare(Phase::UpperMiddle, self.get(vm, self.upper), self.get(vm, middle));
            }
            Phase::UpperMiddle => {
                if hit {
                    self.swap(vm, middle, self.upper)?;
                }
                return self.partition(vm, middle);
            }
            Phase::Up if hit => {
                if self.i > self.upper {
                    return Err(Fault::lib("invalid order function for sorting"));
                }
                self.i += 1;
                self.compare(Phase::Up, self.get(vm, self.i), self.pivot);
            }
            Phase::Up => {
                self.j -= 1;
                self.compare(Phase::Down, self.pivot, self.get(vm, self.j));
            }
            Phase::Down if hit => {
                if self.j < self.lower {
                    return Err(Fault::lib("invalid order function for sorting"));
                }
                self.j -= 1;
                self.compare(Phase::Down, self.pivot, self.get(vm, self.j));
            }
            Phase::Down => return self.meet(vm),
        }
        Ok(true)
    }

    fn partition(&mut self, vm: &mut Vm, middle: i64) -> Result<bool, Fault> {
        if self.upper - self.lower == 2 {
            return Ok(self.end_range(vm));
        }
        self.pivot = self.get(vm, middle);
        self.swap(vm, middle, self.upper - 1)?;
        self.i = self.lower + 1;
        self.j = self.upper - 1;
        self.compare(Phase::Up, self.get(vm, self.i), self.pivot);
        Ok(true)
    }

    fn meet(&mut self, vm: &mut Vm) -> Result<bool, Fault> {
        if self.j >= self.i {
            self.swap(vm, self.i, self.j)?;
            self.i += 1;
            self.compare(Phase::Up, self.get(vm, self.i), self.pivot);
            return Ok(true);
        }
        self.swap(vm, self.upper - 1, self.i)?;
        // The smaller part first, so that there are never many ranges left.
        let (lower, upper, i) = (self.lower, self.upper, self.i);
        if i - lower < upper - i {
            self.rest.push((i + 1, upper));
            (self.lower, self.upper) = (lower, i - 1);
        } else {
            self.rest.push((lower, i - 1));
            (self.lower, self.upper) = (i + 1, upper);
        }
        Ok(self.begin(vm))
    }
}
