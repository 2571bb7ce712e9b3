//! Programs that end in the middle of something, and programs that are refused memory.

use crate::{
    PAGE, PRIVATE, READ_WRITE, compat, end, execute, handle, ignore_ends, kill, leave, make_process, map,
    nap, wait_for,
};
use rustix::process::{setpgid, setsid};
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};

type Body = extern "C" fn(*mut c_void) -> *mut c_void;

/// Makes a thread without what the standard library does for its own.
fn make_thread(body: Body) {
    let mut thread = 0;
    // SAFETY: the pointer is to a live local; the bodies take no argument.
    unsafe { libc::pthread_create(&raw mut thread, std::ptr::null(), body, std::ptr::null_mut()) };
}

/// 300 numbers that are as good as random.
fn seeds() -> impl Iterator<Item = i64> {
    let next = |seed: &u32| Some(seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
    std::iter::successors(next(&1), next).take(300).map(|seed| i64::from(seed >> 8))
}

pub(crate) fn exits_while_it_forks() {
    extern "C" fn forks(_argument: *mut c_void) -> *mut c_void {
        make_process(|| {});
        std::ptr::null_mut()
    }
    for seed in seeds() {
        wait_for(make_process(|| {
            make_thread(forks);
            nap(seed % 100_000);
        }));
    }
    leave(4);
}

pub(crate) fn kills_what_executes() {
    extern "C" fn executes(_argument: *mut c_void) -> *mut c_void {
        execute(&[c"/bin/true"]);
        std::ptr::null_mut()
    }
    for seed in seeds() {
        let child = make_process(|| {
            make_thread(executes);
            wait_for_ever();
        });
        nap(seed % 2_000_000);
        kill(child);
    }
    leave(5);
}

/// Waits to be killed or replaced.
pub(crate) fn wait_for_ever() -> ! {
    loop {
        // SAFETY: it has no preconditions.
        unsafe { libc::pause() };
    }
}

static GUARDED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn mend(_signal: i32) {
    let page = std::ptr::with_exposed_provenance_mut(GUARDED.load(Ordering::Relaxed));
    // SAFETY: the address is that of the child's own mapping.
    unsafe { libc::mprotect(page, PAGE, READ_WRITE) };
}

pub(crate) fn mends_what_was_refused() {
    const ROUNDS: usize = 1000;
    let guards = map(ROUNDS * PAGE, libc::PROT_NONE, PRIVATE);
    handle(libc::SIGSEGV, mend as extern "C" fn(i32) as libc::sighandler_t);
    for round in 0..ROUNDS {
        // SAFETY: each address is inside the mapping, and the handler lets it be written.
        unsafe {
            let page = guards.add(round * PAGE);
            GUARDED.store(page.expose_provenance(), Ordering::Relaxed);
            page.write_volatile(1);
        }
    }
    leave(0);
}

pub(crate) fn executes_what_is_not_executable() {
    let shared = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    for (prot, flags) in
        [(READ_WRITE, PRIVATE), (libc::PROT_READ, PRIVATE), (READ_WRITE, shared), (libc::PROT_NONE, PRIVATE)]
    {
        for is_touched in [false, true] {
            let page = map(PAGE, prot, flags);
            if is_touched && prot == READ_WRITE {
                // SAFETY: the page was just mapped for writing.
                unsafe { page.write_volatile(1) };
            }
            let status = wait_for(make_process(|| {
                handle(libc::SIGSEGV, libc::SIG_DFL);
                // SAFETY: the jump ends the child, which has made nothing but system calls before it.
                unsafe { std::mem::transmute::<*mut u8, extern "C" fn()>(page)() };
                end(0);
            }));
            assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV);
        }
    }
    leave(0);
}

pub(crate) fn ends_only_when_killed() {
    ignore_ends();
    // Other processes and threads: one that waits, one that computes, one that makes processes.
    make_process(|| wait_for_ever());
    make_process(|| {
        loop {
            std::hint::spin_loop();
        }
    });
    std::thread::spawn(|| {
        loop {
            make_process(|| {});
            // SAFETY: waits for a child of ours.
            unsafe { libc::wait(std::ptr::null_mut()) };
        }
    });
    loop {
        std::thread::sleep(std::time::Duration::from_secs(1));
    }
}

/// A child of another process group, and one of another session.
pub(crate) fn leaves_its_group() {
    for is_session in [false, true] {
        wait_for(make_process(|| {
            let left = if is_session { setsid().map(drop) } else { setpgid(None, None) };
            map(PAGE, READ_WRITE, PRIVATE);
            end(if left.is_ok() { 12 } else { 1 });
        }));
    }
    leave(0);
}

pub(crate) fn is_stopped_by_the_terminal() {
    let ignored = |signal| handle(signal, libc::SIG_DFL) == libc::SIG_IGN;
    leave(i32::from([libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU].into_iter().any(ignored)));
}

pub(crate) fn traces() {
    // SAFETY: asks to be traced, which is refused: it is traced already.
    let result = unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) };
    let refused = std::io::Error::last_os_error().raw_os_error() == Some(libc::EPERM);
    leave(if result == -1 && refused { 9 } else { 1 });
}

/// Uses memory as a child that was to be untraced. Returns 0 if it can.
fn use_memory_untraced() -> i32 {
    const PAGES: usize = 50;
    let addr = map(PAGES * PAGE, READ_WRITE, PRIVATE);
    for page in 0..PAGES {
        // SAFETY: inside of the mapping.
        unsafe { addr.add(page * PAGE).write_volatile(1) };
    }
    // Linux fails the calls that the filter reports of a thread without a tracer.
    // SAFETY: asks about one page of the mapping, which takes one byte.
    i32::from(unsafe { libc::mincore(addr.cast(), PAGE, [0_u8].as_mut_ptr()) } != 0)
}

/// Makes children that no tracer gets with the calls of the i386 table.
pub(crate) fn makes_untraced_children_in_32_bit() {
    const CLONES: [u32; 2] = [120, 435];
    if !compat::is_there() {
        leave(9);
    }
    // A block of arguments that these calls reach; the flags of `clone3` do not have the signal.
    let block = map(PAGE, READ_WRITE, PRIVATE | libc::MAP_32BIT).cast::<u64>();
    let bytes = 64;
    let (flags, signal) = (libc::CLONE_UNTRACED as u64, libc::SIGCHLD as u64);
    // SAFETY: the block was just mapped.
    unsafe {
        block.write_volatile(flags);
        block.add(4).write_volatile(signal);
    }
    for (number, args) in CLONES.into_iter().zip([[flags | signal, 0], [block.addr() as u64, bytes]]) {
        // SAFETY: a copy of this process, as fork makes it.
        let (child, after) = unsafe { compat::call_with(number, args) };
        // SAFETY: the block is there.
        let is_kept = after == args[0] && unsafe { block.read_volatile() } == flags;
        if child == 0 {
            end(if is_kept { use_memory_untraced() } else { 2 });
        }
        assert!(child > 0 && is_kept, "{number}: {child}");
        assert_eq!(wait_for(child), 0, "{number}");
    }
    // SAFETY: refused: threads without shared memory.
    let (failed, after) = unsafe { compat::call_with(CLONES[0], [flags | libc::CLONE_THREAD as u64, 0]) };
    assert_eq!((failed, after), (-libc::EINVAL, flags | libc::CLONE_THREAD as u64));
    leave(8);
}

/// Makes a child that no tracer gets, in both ways; each thread looks whether its argument is what it was.
pub(crate) fn makes_untraced_children() {
    let flags = (libc::CLONE_UNTRACED | libc::SIGCHLD) as u64;
    let (mut child, mut after): (i64, u64);
    // SAFETY: a copy of this process, as fork makes it.
    unsafe {
        std::arch::asm!("syscall", inlateout("rax") libc::SYS_clone => child, inlateout("rdi") flags => after,
            in("rsi") 0, in("rdx") 0, in("r10") 0, in("r8") 0, out("rcx") _, out("r11") _);
    }
    if child == 0 {
        end(if after == flags { use_memory_untraced() } else { 2 });
    }
    let is_kept = after == flags;
    let status = wait_for(child as i32);
    // The flags of `clone3` do not have the signal.
    let mut arguments = [0_u64; 8];
    (arguments[0], arguments[4]) = (libc::CLONE_UNTRACED as u64, libc::SIGCHLD as u64);
    // SAFETY: the block of arguments lives on; a copy of this process.
    let child = unsafe { libc::syscall(libc::SYS_clone3, &raw mut arguments, size_of_val(&arguments)) };
    // SAFETY: the block is there.
    let flags = unsafe { (&raw const arguments[0]).read_volatile() };
    let is_kept = is_kept && flags == libc::CLONE_UNTRACED as u64;
    if child == 0 {
        end(if is_kept { use_memory_untraced() } else { 2 });
    }
    assert!(child > 0 && is_kept);
    assert_eq!([status, wait_for(child as i32)], [0, 0]);
    leave(8);
}
