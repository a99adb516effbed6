//! Values: sixteen bytes, `Copy`. What lives in the heap is named by its place in an arena, so a value means something only
//! to the machine that made it.

/// A string of the heap. Equal strings are one string, so equality is that of `id`; the hash is at hand without a look at it.
#[derive(Clone, Copy, Debug)]
pub struct Str {
    pub(super) id: u32,
    pub(super) hash: u32,
}

impl PartialEq for Str {
    fn eq(&self, other: &Str) -> bool {
        self.id == other.id
    }
}

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident),*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name(pub(super) u32);
    )*};
}

handles!(
    /// A table of the heap.
    Tab,
    /// A Lua function with its upvalues.
    Fun,
    /// A library function with values of its own (`coroutine.wrap`, `string.gmatch`).
    Bound,
    /// A coroutine.
    Co
);

/// A Lua value. The tag is a whole word, so that values are copied as two words and not in pieces.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(u64)]
pub enum Value {
    /// `nil`
    Nil,
    /// `true`, `false`
    Bool(bool),
    /// Every number is a double.
    Number(f64),
    /// A string of bytes.
    Str(Str),
    /// A table.
    Table(Tab),
    /// A function of a script.
    Function(Fun),
    /// A function of the library, by its place in the library's array.
    Native(u16),
    /// A function of the library with state.
    Bound(Bound),
    /// A function of the host, by the number the host gave it.
    Host(u16),
    /// A coroutine.
    Thread(Co),
    /// `cjson.null`, the only userdata there is.
    Null,
    /// The key of a removed entry whose object was collected. Never seen by scripts.
    Dead,
}

impl Value {
    /// Neither `nil` nor `false`.
    pub fn truthy(self) -> bool {
        !matches!(self, Value::Nil | Value::Bool(false))
    }

    /// Whether it is nil.
    pub fn is_nil(self) -> bool {
        matches!(self, Value::Nil)
    }

    /// What `type` answers.
    pub fn type_name(self) -> &'static str {
        match self {
            Value::Nil | Value::Dead => "nil",
            Value::Bool(_) => "boolean",
            Value::Number(_) => "number",
            Value::Str(_) => "string",
            Value::Table(_) => "table",
            Value::Function(_) | Value::Native(_) | Value::Bound(_) | Value::Host(_) => "function",
            Value::Thread(_) => "thread",
            Value::Null => "userdata",
        }
    }

    pub(super) fn is_function(self) -> bool {
        matches!(self, Value::Function(_) | Value::Native(_) | Value::Bound(_) | Value::Host(_))
    }
}
