//! Bringing memory into the processor's cache before it is read.

/// Bytes of a cache line.
pub const LINE: usize = 64;

/// Fetches the line that `at` points to. Reads nothing as far as the program can tell, so that any address will do.
#[inline]
pub fn prefetch<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        #[expect(unsafe_code, reason = "a prefetch has no safe form")]
        // SAFETY: a prefetch reads nothing architecturally; any address is allowed.
        unsafe {
            _mm_prefetch(at.cast(), _MM_HINT_T0);
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Fetches the line that `at` points to, to be written: no other processor keeps it.
#[inline]
pub fn prefetch_to_write<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        #[expect(unsafe_code, reason = "a prefetch has no safe form")]
        // SAFETY: a prefetch reads nothing architecturally; any address is allowed.
        unsafe {
            _mm_prefetch(at.cast(), _MM_HINT_ET0);
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Fetches the lines that hold these values.
#[inline]
pub fn prefetch_all<T>(values: &[T]) {
    let bytes = size_of_val(values);
    let at = values.as_ptr().cast::<u8>();
    (0..bytes).step_by(LINE).for_each(|offset| prefetch(at.wrapping_add(offset)));
    if bytes > 0 {
        // Where the first line is entered amid, there is one more.
        prefetch(at.wrapping_add(bytes - 1));
    }
}
