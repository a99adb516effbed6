use super::super::vm::NativeFn;
pub(in super::super) const FUNCTIONS: &[(&str, NativeFn)] = &[];
