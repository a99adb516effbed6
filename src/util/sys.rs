//! The few calls to the system that the standard library does not have.

/// Sets the nice value of the calling thread. Failure leaves it as it was.
pub fn set_nice(nice: i32) {
    if nice == 0 {
        return;
    }
    #[expect(unsafe_code, reason = "no safe form in the standard library")]
    // SAFETY: plain integers; on Linux the call concerns the calling thread alone.
    unsafe {
        libc::setpriority(libc::PRIO_PROCESS, 0, nice);
    }
}

/// Ends a socket from another thread than its own: its reader then sees the end. The caller makes sure that the
/// descriptor is still that socket.
pub fn shutdown_socket(fd: i32) {
    #[expect(unsafe_code, reason = "no safe form for a bare descriptor")]
    // SAFETY: plain integers; on anything but an open socket it fails and does nothing.
    unsafe {
        libc::shutdown(fd, libc::SHUT_RDWR);
    }
}

/// Raises the limit of open files towards `wanted`; what it is afterwards.
pub fn raise_file_limit(wanted: u64) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    #[expect(unsafe_code, reason = "no safe form in the standard library")]
    // SAFETY: `limit` is a valid structure for the time of both calls.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) != 0 {
            return 1024;
        }
        if limit.rlim_cur < wanted {
            let raised = libc::rlimit { rlim_cur: wanted.min(limit.rlim_max), rlim_max: limit.rlim_max };
            if libc::setrlimit(libc::RLIMIT_NOFILE, &raised) == 0 {
                return raised.rlim_cur;
            }
        }
    }
    limit.rlim_cur
}
