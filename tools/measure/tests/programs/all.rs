//! The programs that the tests measure and kill. The first argument says which.

use std::io::{Read as _, Write as _};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use quire_measure::{HostSettings, HugeSettings, MemoryLimit, Options, Swap, SwapKind};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["hold", root, lock, ref settings @ ..] => hold(root, lock, settings),
        ["touch", mebibytes] => end(touch(number(mebibytes), None)),
        ["huge", mebibytes] => end(touch(number(mebibytes), Some(libc::MADV_HUGEPAGE))),
        ["brief", mebibytes] => {
            let (start, length) = touch(number(mebibytes), None);
            // SAFETY: the mapping is this program's own, and nothing points to it.
            unsafe { libc::munmap(start.cast(), length) };
            end((std::ptr::null_mut(), 0))
        }
        ["forks", mine, more] => forks(number(mine), number(more)),
        ["starts", mebibytes, ref command @ ..] => starts(number(mebibytes), command),
        ["thread-forks", mebibytes] => thread_forks(number(mebibytes)),
        ["leaves", milliseconds] => leaves(number(milliseconds) as u64),
        ["spin", milliseconds] => spin(number(milliseconds) as u64),
        ["sleep"] => {
            println!("{}", std::process::id());
            std::thread::sleep(Duration::from_secs(600));
            ExitCode::SUCCESS
        }
        ["random", mebibytes, reads] => random(number(mebibytes), number(reads)),
        ["waits", mebibytes] => {
            // SAFETY: this program has one thread.
            if unsafe { libc::fork() } == 0 {
                end(touch(number(mebibytes), None));
            }
            std::thread::sleep(Duration::from_secs(600));
            ExitCode::SUCCESS
        }
        ["holds-data", mebibytes] => {
            let _held = fill(number(mebibytes));
            println!("{}", std::process::id());
            std::thread::sleep(Duration::from_secs(600));
            ExitCode::SUCCESS
        }
        ["halts"] => halts(),
        ["signals", count] => signals(number(count)),
        ["measures", program] => {
            let mut command = Command::new(program);
            command.args(["sleep"]);
            let _ = quire_measure::measure(command, &Options::default());
            ExitCode::SUCCESS
        }
        ["limits", mebibytes, program, ref arguments @ ..] => {
            limits(number(mebibytes) as u64, program, arguments)
        }
        _ => ExitCode::from(2),
    }
}

fn number(word: &str) -> usize {
    word.parse().expect("a number")
}

/// Maps so many MiB of anonymous memory.
fn map(mebibytes: usize) -> (*mut u8, usize) {
    let length = mebibytes << 20;
    let alignment = 2 << 20;
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), length + alignment, access, kind, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    (start.cast::<u8>().map_addr(|address| address.next_multiple_of(alignment)), length)
}

/// Maps memory with advice, and writes to each page.
fn touch(mebibytes: usize, advice: Option<i32>) -> (*mut u8, usize) {
    let (start, length) = map(mebibytes);
    if let Some(advice) = advice {
        // SAFETY: the range is inside the mapping.
        unsafe { libc::madvise(start.cast(), length, advice) };
    }
    for page in (0..length).step_by(4096) {
        // SAFETY: inside the mapping, and not looked at by the compiler.
        unsafe { start.add(page).write_volatile(1) };
    }
    (start, length)
}

/// Maps memory, and fills half of each page with what no compression makes smaller.
fn fill(mebibytes: usize) -> (*mut u8, usize) {
    let (start, length) = map(mebibytes);
    let mut state = 1;
    for word in (0..length).step_by(8).filter(|at| at % 4096 < 2048) {
        // SAFETY: inside the mapping, and aligned to a word.
        unsafe { start.add(word).cast::<u64>().write(next(&mut state)) };
    }
    (start, length)
}

/// Fills memory, reads a byte of a random page so often, and prints how many major faults there were.
fn random(mebibytes: usize, reads: usize) -> ExitCode {
    let (start, length) = fill(mebibytes);
    let mut state = 7;
    for _ in 0..reads {
        let at = next(&mut state) as usize % length;
        // SAFETY: inside the mapping.
        unsafe { start.add(at).read_volatile() };
    }
    // SAFETY: rusage is a struct of integers, for which zeros are valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the address is of a variable of its type.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    println!("{}", usage.ru_majflt);
    ExitCode::SUCCESS
}

/// The next number of xorshift.
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Measures a program within a limit of half of so many MiB, with zram behind it.
fn limits(mebibytes: u64, program: &str, arguments: &[&str]) -> ExitCode {
    let mut command = Command::new(program);
    command.args(arguments);
    let swap = Swap { kind: SwapKind::Zram, bytes: mebibytes << 21 };
    let limit = Some(MemoryLimit::new(mebibytes << 19, Some(swap)));
    match quire_measure::measure(command, &Options { limit, ..Options::default() }) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints how much anonymous memory there is, and ends at once with all of it.
fn end(_held: (*mut u8, usize)) -> ! {
    let mut text = std::fs::read_to_string("/proc/self/status").expect("status");
    let at = text.find("RssAnon:").expect("RssAnon");
    text.drain(..at);
    let line = text.lines().next().expect("a line");
    // SAFETY: the line is as long as is said; the second call ends the process.
    unsafe {
        libc::write(1, line.as_ptr().cast(), line.len());
        libc::write(1, c"\n".as_ptr().cast(), 1);
        libc::_exit(0)
    }
}

fn wait_for(child: i32) {
    // SAFETY: it may be given no place for the status.
    while unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) } != child {}
}

/// Holds some memory, and has a child that holds more besides, and ends with it.
fn forks(mine: usize, more: usize) -> ExitCode {
    let _held = touch(mine, None);
    // SAFETY: this program has one thread.
    match unsafe { libc::fork() } {
        0 => end(touch(more, None)),
        child => wait_for(child),
    }
    ExitCode::SUCCESS
}

/// Holds some memory while another program runs, which it starts as `vfork` does.
fn starts(mebibytes: usize, command: &[&str]) -> ExitCode {
    let _held = touch(mebibytes, None);
    for _ in 0..20 {
        Command::new(command[0]).args(&command[1..]).status().expect("a program");
    }
    ExitCode::SUCCESS
}

/// Has a child that another thread than the first one makes; the first one ends before.
fn thread_forks(mebibytes: usize) -> ExitCode {
    let thread = std::thread::spawn(move || {
        // SAFETY: the child makes system calls and writes to a mapping of its own, and ends.
        match unsafe { libc::fork() } {
            0 => end(touch(mebibytes, None)),
            child => wait_for(child),
        }
    });
    thread.join().expect("a thread");
    ExitCode::SUCCESS
}

/// Leaves a process behind that takes processor time, for another to wait for.
fn leaves(milliseconds: u64) -> ExitCode {
    // SAFETY: this program has one thread.
    match unsafe { libc::fork() } {
        0 => spin(milliseconds),
        _ => ExitCode::SUCCESS,
    }
}

/// Takes so much processor time.
fn spin(milliseconds: u64) -> ExitCode {
    let used = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
    };
    while used() < Duration::from_millis(milliseconds) {}
    ExitCode::SUCCESS
}

/// Stops itself, and is continued by a child that has seen it stopped.
fn halts() -> ExitCode {
    let me = std::process::id().cast_signed();
    // SAFETY: this program has one thread.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // T is halted; t is stopped for its tracer for a moment only.
        let halted = || {
            let stat = std::fs::read_to_string(format!("/proc/{me}/stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 't']))
        };
        while !halted() {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(20));
        // SAFETY: it sends a signal.
        unsafe { libc::kill(me, libc::SIGCONT) };
        return ExitCode::SUCCESS;
    }
    // SAFETY: it sends a signal.
    unsafe { libc::raise(libc::SIGSTOP) };
    wait_for(child);
    println!("continued");
    ExitCode::SUCCESS
}

/// Gets so many signals, some of them real-time ones, and counts them.
fn signals(count: usize) -> ExitCode {
    static SEEN: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn saw(_: i32) {
        // Only this thread counts.
        SEEN.fetch_add(1, Ordering::Relaxed);
    }
    let handler: extern "C" fn(i32) = saw;
    for at in 0..count {
        let signal = if at % 2 == 0 { libc::SIGUSR1 } else { libc::SIGRTMIN() + 3 };
        // SAFETY: the handler only adds to a counter.
        unsafe { libc::signal(signal, handler as usize) };
        // SAFETY: it sends a signal, for which there is a handler.
        unsafe { libc::raise(signal) };
    }
    println!("{}", SEEN.load(Ordering::Relaxed));
    ExitCode::SUCCESS
}

/// Puts settings in place, says so, and keeps them until its input ends.
fn hold(root: &str, lock: &str, settings: &[&str]) -> ExitCode {
    let settings: HugeSettings = settings.iter().filter_map(|setting| setting.split_once('=')).collect();
    match HostSettings::at(root, lock).apply(&settings) {
        Ok(_guard) => {
            println!("held");
            let _ = std::io::stdout().flush();
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}
