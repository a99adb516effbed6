//! The library: what Redis lets scripts use.
//!
//! Each function is a row: its name and what it does. A name in brackets is a function that scripts only get as a value.

pub(super) mod base;
pub(super) mod bit;
pub(super) mod cjson;
pub(super) mod cmsgpack;
pub(super) mod coroutine;
pub(super) mod format;
pub(super) mod gsub;
pub(super) mod json_decode;
pub(super) mod math;
pub(super) mod pattern;
pub(super) mod sort;
pub(super) mod string;
pub(super) mod structs;
pub(super) mod table;

use super::fault::Fault;
use super::heap::Heap;
use super::value::{Tab, Value};
use super::vm::NativeFn;

/// All functions, those of the file that owns each table together.
pub(super) static NATIVES: std::sync::LazyLock<Vec<(&'static str, NativeFn)>> = std::sync::LazyLock::new(|| {
    let groups: [&[(&str, NativeFn)]; 11] = [
        base::FUNCTIONS,
        coroutine::FUNCTIONS,
        string::FUNCTIONS,
        gsub::FUNCTIONS,
        format::FUNCTIONS,
        table::FUNCTIONS,
        math::FUNCTIONS,
        bit::FUNCTIONS,
        structs::FUNCTIONS,
        cjson::FUNCTIONS,
        cmsgpack::FUNCTIONS,
    ];
    groups.concat()
});

/// Functions that others make values of.
pub(super) struct Places {
    pub(super) next: u16,
    pub(super) ipairs: u16,
    pub(super) wrap: u16,
    pub(super) gmatch: u16,
}

pub(super) static PLACES: std::sync::LazyLock<Places> = std::sync::LazyLock::new(|| Places {
    next: place_of("next"),
    ipairs: place_of("(ipairs)"),
    wrap: place_of("(wrap)"),
    gmatch: place_of("(gmatch)"),
});

/// The place of a function among all.
pub(super) fn place_of(name: &str) -> u16 {
    NATIVES.iter().position(|(row, _)| *row == name).unwrap_or(0) as u16
}

/// Enters a function or constant under its dotted name.
pub(super) fn register(heap: &mut Heap, globals: Tab, name: &str, value: Value) -> Result<(), Fault> {
    let mut table = globals;
    let mut rest = name;
    while let Some((first, after)) = rest.split_once('.') {
        let key = heap.string(first.as_bytes())?;
        table = match heap.get(table, key) {
            Value::Table(tab) => tab,
            _ => {
                let tab = heap.new_table(0, 0)?;
                heap.raw_set(table, key, Value::Table(tab))?;
                tab
            }
        };
        rest = after;
    }
    let key = heap.string(rest.as_bytes())?;
    heap.raw_set(table, key, value)
}

/// Enters the whole library.
pub(super) fn open(heap: &mut Heap, globals: Tab) -> Result<(), Fault> {
    for (at, (name, _)) in NATIVES.iter().enumerate() {
        if !name.starts_with('(') {
            register(heap, globals, name, Value::Native(at as u16))?;
        }
    }
    register(heap, globals, "_G", Value::Table(globals))?;
    let version = heap.string(b"Lua 5.1")?;
    register(heap, globals, "_VERSION", version)?;
    register(heap, globals, "math.pi", Value::Number(std::f64::consts::PI))?;
    register(heap, globals, "math.huge", Value::Number(f64::INFINITY))?;
    register(heap, globals, "cjson.null", Value::Null)?;
    for (name, text) in [
        ("cjson._NAME", "cjson"),
        ("cjson._VERSION", "2.1.0"),
        ("cmsgpack._NAME", "cmsgpack"),
        ("cmsgpack._VERSION", "lua-cmsgpack 0.4.0"),
        ("cmsgpack._COPYRIGHT", "Copyright (C) 2012, Salvatore Sanfilippo"),
        ("cmsgpack._DESCRIPTION", "MessagePack C implementation for Lua"),
    ] {
        let text = heap.string(text.as_bytes())?;
        register(heap, globals, name, text)?;
    }
    Ok(())
}
