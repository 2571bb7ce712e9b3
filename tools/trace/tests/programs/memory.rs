//! Programs with many threads, processes, programs and ends.

use crate::{PAGE, leave, map};
use std::ffi::CStr;
use std::sync::atomic::{AtomicU32, Ordering};

fn map_pages(pages: usize) -> *mut u8 {
    map(pages * PAGE, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS)
}

fn touch(addr: *mut u8, pages: usize) {
    for page in 0..pages {
        // SAFETY: the callers pass memory that they mapped.
        unsafe { addr.add(page * PAGE).write_volatile(1) };
    }
}

fn unmap(addr: *mut u8, pages: usize) {
    // SAFETY: the callers pass memory that they mapped and use no more.
    unsafe { libc::munmap(addr.cast(), pages * PAGE) };
}

pub(crate) fn threads() {
    let work = |seed: usize| {
        let mut kept = Vec::new();
        for round in 0..300 {
            let pages = 1 + (round * 7 + seed * 3) % 9;
            let addr = map_pages(pages);
            touch(addr, pages);
            kept.push((addr, pages));
            if round % 3 == 2 {
                let (addr, pages) = kept.swap_remove((round + seed) % kept.len());
                unmap(addr, pages);
            }
        }
        for (addr, pages) in kept {
            unmap(addr, pages);
        }
    };
    std::thread::scope(|scope| {
        for seed in 0..6 {
            scope.spawn(move || work(seed));
        }
    });
    leave(3);
}

pub(crate) fn forks() {
    let addr = map_pages(8);
    touch(addr, 8);
    for depth in 0..3 {
        // SAFETY: the child only touches memory, forks again and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            touch(addr, 8 - depth);
            let own = map_pages(2);
            touch(own, 2);
            if depth == 1 {
                // SAFETY: as above.
                if unsafe { libc::fork() } == 0 {
                    touch(addr, 2);
                    // SAFETY: ends this process at once.
                    unsafe { libc::_exit(11) };
                }
                // SAFETY: waits for a child of ours.
                unsafe { libc::wait(std::ptr::null_mut()) };
            }
            // SAFETY: ends this process at once.
            unsafe { libc::_exit(10) };
        }
        // SAFETY: waits for a child of ours.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        touch(addr, 8);
    }
    leave(0);
}

pub(crate) fn uses_again() {
    let addr = map_pages(600);
    touch(addr, 600);
    let begun = std::time::Instant::now();
    while begun.elapsed() < std::time::Duration::from_secs(1) {
        touch(addr, 200);
    }
    leave(0);
}

pub(crate) fn nothing() {
    leave(0);
}

pub(crate) fn spawns() {
    let program = std::env::current_exe().unwrap();
    // Other threads use memory meanwhile: the maker stands still until its child has executed, they must not.
    let busy = std::thread::spawn(|| {
        for _ in 0..200 {
            let addr = map_pages(3);
            touch(addr, 3);
            unmap(addr, 3);
        }
    });
    for _ in 0..3 {
        assert!(std::process::Command::new(&program).arg("nothing").status().unwrap().success());
    }
    assert!(std::process::Command::new("/nowhere/at/all").status().is_err());
    busy.join().unwrap();
    leave(0);
}

pub(crate) fn executes_from_thread() {
    let busy = || {
        loop {
            let addr = map_pages(2);
            touch(addr, 2);
            unmap(addr, 2);
        }
    };
    std::thread::spawn(busy);
    let execute = || {
        use std::os::unix::process::CommandExt;
        std::process::Command::new(std::env::current_exe().unwrap()).arg("nothing").exec()
    };
    drop(std::thread::spawn(execute).join());
    leave(1);
}

static GUARD: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

extern "C" fn open_guard(_signal: i32) {
    let addr = GUARD.load(Ordering::Relaxed);
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: the guard is memory that the child set aside for this.
    unsafe {
        libc::mmap(std::ptr::with_exposed_provenance_mut(addr), PAGE, prot, flags | libc::MAP_FIXED, -1, 0);
    }
}

pub(crate) fn guard() {
    // SAFETY: the handler only maps memory, which is safe in a signal handler.
    unsafe { libc::signal(libc::SIGSEGV, open_guard as extern "C" fn(i32) as libc::sighandler_t) };
    for round in 0..4 {
        let guard = map(3 * PAGE, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: inside the mapping.
        let page = unsafe { guard.add(PAGE) };
        if round % 2 == 0 {
            unmap(guard, 3);
        }
        GUARD.store(page.expose_provenance(), Ordering::Relaxed);
        touch(page, 1);
    }
    leave(0);
}

pub(crate) fn killed() {
    touch(map_pages(4), 4);
    // SAFETY: signals this process.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
}

pub(crate) fn leaves_threads() {
    const THREADS: u32 = 4;
    static AT_WORK: AtomicU32 = AtomicU32::new(0);
    for _ in 0..THREADS {
        std::thread::spawn(|| {
            let mut first = true;
            loop {
                let addr = map_pages(2);
                touch(addr, 2);
                unmap(addr, 2);
                if std::mem::take(&mut first) {
                    AT_WORK.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    }
    while AT_WORK.load(Ordering::Relaxed) < THREADS {
        std::thread::yield_now();
    }
    leave(5);
}

pub(crate) fn details() {
    let limit = libc::rlimit { rlim_cur: 1 << 30, rlim_max: 1 << 31 };
    let mut residents = [0_u8; 4];
    // SAFETY: every call gets live memory of the right size, or memory that was mapped here.
    unsafe {
        libc::setrlimit(libc::RLIMIT_DATA, &raw const limit);
        let fd = libc::memfd_create(c"some memory".as_ptr(), 0);
        libc::ftruncate(fd, 2 * PAGE as i64);
        let (prot, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        let memory: *mut u8 = libc::mmap(std::ptr::null_mut(), 4 * PAGE, prot, shared, fd, 0).cast();
        touch(memory, 2);
        libc::mmap(std::ptr::null_mut(), PAGE, prot, shared, 999, 0);
        let four = map_pages(4);
        touch(four, 3);
        libc::mincore(four.cast(), 4 * PAGE, residents.as_mut_ptr());
        let name: &CStr = c"fine name";
        libc::prctl(libc::PR_SET_VMA, libc::PR_SET_VMA_ANON_NAME, four, 4 * PAGE, name.as_ptr());
        let segment = libc::shmget(libc::IPC_PRIVATE, 3 * PAGE, libc::IPC_CREAT | 0o600);
        let addr = libc::shmat(segment, std::ptr::null(), 0);
        libc::shmctl(segment, libc::IPC_RMID, std::ptr::null_mut());
        libc::shmdt(addr);
        let large = map_pages(600);
        touch(large, 600);
        map_pages(1);
        libc::mremap(large.cast(), 600 * PAGE, 1200 * PAGE, libc::MREMAP_MAYMOVE);
    }
    leave(i32::from(residents.iter().sum::<u8>()));
}

pub(crate) fn foreign() {
    // brk of the i386 table. A kernel without that table sends a signal.
    // SAFETY: asks for the break; changes no memory. The compiler's use of rbx is respected by the exchange.
    unsafe {
        std::arch::asm!(
            "xchg rbx, {zero}", "int 0x80", "xchg rbx, {zero}",
            zero = inout(reg) 0_u64 => _, inout("rax") 45_u64 => _, out("r8") _, out("r9") _, out("r10") _, out("r11") _,
        );
    }
    leave(0);
}
