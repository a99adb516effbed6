//! The few calls to the system that the standard library does not have.

/// Makes the calling thread, and those that it starts, yield to the process's first thread by so much, as nice(1) counts.
/// Failure leaves it as it was.
#[cfg_attr(not(target_os = "linux"), expect(unused_variables, reason = "nothing is known there of a thread's own"))]
fn yield_by(nice: i32) {
    #[cfg(target_os = "linux")]
    #[expect(unsafe_code, reason = "no safe form in the standard library")]
    // SAFETY: plain integers; on Linux the first thread has the process's id, and 0 is the calling one.
    unsafe {
        let first = libc::getpriority(libc::PRIO_PROCESS, std::process::id());
        libc::setpriority(libc::PRIO_PROCESS, 0, first + nice);
    }
}

/// Makes the calling thread, and those that it starts, one of background work: it yields by so much, and interrupts nobody.
/// Failure leaves it as it was, as 0 does.
pub fn to_background(nice: i32) {
    if nice != 0 {
        yield_by(nice);
        interrupt_nobody();
    }
}

/// From now on the calling thread, and those that it starts, interrupt nobody when they wake: they wait for a processor that is
/// free, or for their turn. Failure leaves it as it was.
pub fn interrupt_nobody() {
    #[cfg(target_os = "linux")]
    #[expect(unsafe_code, reason = "no safe form in the standard library")]
    // SAFETY: an integer, and a structure that is valid for the call, which concerns the calling thread alone.
    unsafe {
        libc::sched_setscheduler(0, libc::SCHED_BATCH, &libc::sched_param { sched_priority: 0 });
    }
}

/// Processor time that the calling thread has had; only differences mean anything.
pub fn thread_time() -> std::time::Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    #[expect(unsafe_code, reason = "no safe form in the standard library")]
    // SAFETY: the structure is the caller's own; where the clock does not exist it stays as it is.
    unsafe {
        libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time);
    }
    std::time::Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Fills this with what nobody can foretell.
///
/// # Errors
/// Those of reading the system's source.
pub fn random_bytes(bytes: &mut [u8]) -> std::io::Result<()> {
    use std::io::Read as _;
    std::fs::File::open("/dev/urandom")?.read_exact(bytes)
}

/// Has the kernel begin to write a part of a file to the disk. Nothing is promised. A disk that has much to do keeps the
/// caller waiting, who must therefore be none that others wait for.
pub fn begin_write_back(file: &std::fs::File, offset: u64, bytes: u64) {
    #[cfg(target_os = "linux")]
    #[expect(unsafe_code, reason = "no safe form in the standard library")]
    // SAFETY: plain integers and a descriptor that is open for the time of the call.
    unsafe {
        use std::os::fd::AsRawFd;
        libc::sync_file_range(file.as_raw_fd(), offset as i64, bytes as i64, libc::SYNC_FILE_RANGE_WRITE);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (file, offset, bytes);
}

/// Has the kernel begin to read a part of a file from the disk into its cache. Nothing is promised.
pub fn begin_read(file: &std::fs::File, offset: u64, bytes: u64) {
    #[cfg(target_os = "linux")]
    #[expect(unsafe_code, reason = "no safe form in the standard library")]
    // SAFETY: plain integers and a descriptor that is open for the time of the call.
    unsafe {
        use std::os::fd::AsRawFd;
        libc::posix_fadvise(file.as_raw_fd(), offset as libc::off_t, bytes as libc::off_t, libc::POSIX_FADV_WILLNEED);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (file, offset, bytes);
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

/// How large a file system is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileSystem {
    /// All of it.
    pub total_bytes: u64,
    /// What this user may still fill.
    pub free_bytes: u64,
}

/// The file system of a path; `None` if the system does not tell.
pub fn file_system(path: &std::path::Path) -> Option<FileSystem> {
    use std::os::unix::ffi::OsStrExt as _;
    let path = std::ffi::CString::new(path.as_os_str().as_bytes()).ok()?;
    let mut stat = std::mem::MaybeUninit::<libc::statvfs>::zeroed();
    #[expect(unsafe_code, reason = "no safe form in the standard library")]
    // SAFETY: path and structure are valid for the call, and all zero is a value of the structure.
    let stat = unsafe {
        if libc::statvfs(path.as_ptr(), stat.as_mut_ptr()) != 0 {
            return None;
        }
        stat.assume_init()
    };
    let bytes = |blocks: libc::fsblkcnt_t| blocks.saturating_mul(stat.f_frsize);
    Some(FileSystem { total_bytes: bytes(stat.f_blocks), free_bytes: bytes(stat.f_bavail) })
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

/// Goes on as a process of its own in the background, without a terminal and with standard streams that lead nowhere; the one that
/// was started ends here. Only for a process with one thread.
pub fn to_daemon() -> std::io::Result<()> {
    use std::os::fd::AsRawFd as _;
    let nowhere = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    #[expect(unsafe_code, reason = "no safe form in the standard library")]
    // SAFETY: plain integers. The process has one thread, so that the child finds every lock free. The parent ends without running what
    // it has registered for its end, as that is the child's now.
    unsafe {
        match libc::fork() {
            -1 => return Err(std::io::Error::last_os_error()),
            0 => {}
            _ => libc::_exit(0),
        }
        libc::setsid();
        for stream in 0..=2 {
            libc::dup2(nowhere.as_raw_fd(), stream);
        }
    }
    Ok(())
}

/// What a thread has waited for so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waits {
    /// How often for anything, a disk or a lock, and was not just kept from its processor.
    pub any: i64,
    /// Blocks of a disk that were read for it; 0 on file systems that read in threads of their own.
    pub inputs: i64,
}

/// What the calling thread has waited for; `None` if the system does not tell.
pub fn waits() -> Option<Waits> {
    #[cfg(target_os = "linux")]
    {
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
        #[expect(unsafe_code, reason = "no safe form in the standard library")]
        // SAFETY: the structure is valid for the call, and all zero is a value of it.
        let usage = unsafe {
            libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
            usage.assume_init()
        };
        Some(Waits { any: usage.ru_nvcsw, inputs: usage.ru_inblock })
    }
    #[cfg(not(target_os = "linux"))]
    None
}

/// CPU time of the process so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// In the kernel, µs.
    pub system_us: u64,
    /// Outside of it, µs.
    pub user_us: u64,
}

/// CPU time of all threads, the ended ones included; zero if the system does not tell.
pub fn cpu_time() -> CpuTime {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    #[expect(unsafe_code, reason = "no safe form in the standard library")]
    // SAFETY: the structure is valid for the call, and all zero is a value of it.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    let us = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
    CpuTime { system_us: us(usage.ru_stime), user_us: us(usage.ru_utime) }
}

/// The calling thread's id; 0 where there is no `/proc`.
pub fn thread_id() -> u32 {
    let link = std::fs::read_link("/proc/thread-self").unwrap_or_default();
    link.file_name().and_then(|name| name.to_str()?.parse().ok()).unwrap_or(0)
}

/// CPU time of a thread of the process, to a hundredth of a second; zero if it has ended.
pub fn cpu_time_of(thread: u32) -> CpuTime {
    const TICK_US: u64 = 10_000;
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    // The name, in brackets, may hold spaces; user and system time are the twelfth and thirteenth word behind it.
    let mut words = stat.rsplit(')').next().unwrap_or_default().split_ascii_whitespace().skip(11);
    let mut time = || words.next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0) * TICK_US;
    let (user_us, system_us) = (time(), time());
    CpuTime { system_us, user_us }
}

/// Resident memory of the process in bytes; zero where there is no `/proc`.
pub fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    kib_line(&status, "VmRSS:")
}

/// Memory of the machine in bytes; zero where there is no `/proc`.
pub fn machine_memory_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    kib_line(&text, "MemTotal:")
}

fn kib_line(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap_or(0) * 1024
}

/// Name and release of the kernel and the machine's kind, as `uname -srm` prints them.
pub fn os_name() -> String {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
    let (name, release) = (read("ostype"), read("osrelease"));
    format!("{} {} {}", name.trim(), release.trim(), std::env::consts::ARCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_answers() {
        assert!(resident_bytes() > 1 << 20);
        assert!(machine_memory_bytes() > resident_bytes());
        assert!(cpu_time() != CpuTime::default());
        let (me, began) = (thread_id(), std::time::Instant::now());
        while cpu_time_of(me) == CpuTime::default() {
            assert!(began.elapsed().as_secs() < 60, "a thread that computes takes time");
        }
        assert_eq!(cpu_time_of(u32::MAX), CpuTime::default());
        assert!(os_name().starts_with("Linux "), "{}", os_name());
        let root = file_system(std::path::Path::new("/")).is_some_and(|root| root.total_bytes > root.free_bytes);
        assert!(root && file_system(std::path::Path::new("/no/such/path")).is_none());
    }
}
