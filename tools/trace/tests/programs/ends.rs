//! Programs that end in the middle of something, and programs that are refused memory.

use crate::{PAGE, leave, map};
use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) fn exits_while_it_forks() {
    extern "C" fn forks(_argument: *mut libc::c_void) -> *mut libc::c_void {
        // SAFETY: the child of the fork ends at once.
        unsafe {
            if libc::fork() == 0 {
                libc::_exit(0);
            }
        }
        std::ptr::null_mut()
    }
    let mut seed = 1_u32;
    for _ in 0..300 {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // SAFETY: the child makes a thread, sleeps and ends; the pointers are to live locals.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                let mut thread = 0;
                libc::pthread_create(&raw mut thread, std::ptr::null(), forks, std::ptr::null_mut());
                let pause = libc::timespec { tv_sec: 0, tv_nsec: i64::from(seed >> 8) % 100_000 };
                libc::nanosleep(&raw const pause, std::ptr::null_mut());
                libc::syscall(libc::SYS_exit_group, 0);
            }
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
    }
    leave(4);
}

static GUARDED: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn kills_what_executes() {
    extern "C" fn executes(_argument: *mut libc::c_void) -> *mut libc::c_void {
        let program = c"/bin/true".as_ptr();
        // SAFETY: the words are a list that ends with null.
        unsafe { libc::execv(program, [program, std::ptr::null()].as_ptr()) };
        std::ptr::null_mut()
    }
    let mut seed = 1_u32;
    for _ in 0..300 {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // SAFETY: the child makes a thread and waits to be killed or replaced; the pointers are to live
        // locals.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                let mut thread = 0;
                libc::pthread_create(&raw mut thread, std::ptr::null(), executes, std::ptr::null_mut());
                loop {
                    libc::pause();
                }
            }
            let pause = libc::timespec { tv_sec: 0, tv_nsec: i64::from(seed >> 8) % 2_000_000 };
            libc::nanosleep(&raw const pause, std::ptr::null_mut());
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
    }
    leave(5);
}

extern "C" fn mend(_signal: i32) {
    // SAFETY: the address is that of the child's own mapping.
    unsafe {
        let page = std::ptr::with_exposed_provenance_mut(GUARDED.load(Ordering::Relaxed));
        libc::mprotect(page, PAGE, libc::PROT_READ | libc::PROT_WRITE);
    }
}

pub(crate) fn mends_what_was_refused() {
    const ROUNDS: usize = 1000;
    let guards = map(ROUNDS * PAGE, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: the handler makes one system call; each address is inside the mapping.
    unsafe {
        libc::signal(libc::SIGSEGV, mend as extern "C" fn(i32) as libc::sighandler_t);
        for round in 0..ROUNDS {
            let page = guards.add(round * PAGE);
            GUARDED.store(page.expose_provenance(), Ordering::Relaxed);
            page.write_volatile(1);
        }
    }
    leave(0);
}

pub(crate) fn executes_what_is_not_executable() {
    const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;
    let shared = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    for (prot, flags) in [(RW, private), (libc::PROT_READ, private), (RW, shared), (libc::PROT_NONE, private)]
    {
        for is_touched in [false, true] {
            let page = map(PAGE, prot, flags);
            if is_touched && prot == RW {
                // SAFETY: the page was just mapped for writing.
                unsafe { page.write_volatile(1) };
            }
            // SAFETY: the jump ends the child, which has made nothing but system calls before it.
            let status = unsafe {
                let child = libc::fork();
                if child == 0 {
                    libc::signal(libc::SIGSEGV, libc::SIG_DFL);
                    std::mem::transmute::<*mut u8, extern "C" fn()>(page)();
                    libc::_exit(0);
                }
                let mut status = 0;
                assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
                status
            };
            assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV);
        }
    }
    leave(0);
}

pub(crate) fn ends_only_when_killed() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: ignoring signals has no memory preconditions.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    // Other processes and threads: one that waits, one that computes, one that makes processes.
    // SAFETY: the children sleep or compute; they are killed in the end.
    unsafe {
        if libc::fork() == 0 {
            loop {
                libc::pause();
            }
        }
        if libc::fork() == 0 {
            loop {
                std::hint::spin_loop();
            }
        }
    }
    std::thread::spawn(|| {
        loop {
            // SAFETY: the child of the fork ends at once.
            unsafe {
                if libc::fork() == 0 {
                    libc::_exit(0);
                }
                libc::wait(std::ptr::null_mut());
            }
        }
    });
    loop {
        std::thread::sleep(std::time::Duration::from_secs(1));
    }
}

pub(crate) fn traces() {
    // SAFETY: asks to be traced, which is refused: it is traced already.
    let result = unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) };
    let refused = std::io::Error::last_os_error().raw_os_error() == Some(libc::EPERM);
    leave(if result == -1 && refused { 9 } else { 1 });
}
