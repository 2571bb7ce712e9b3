//! Programs with many threads, processes, programs and ends.

use crate::shared::{
    EXECUTING, HOT_EACH, HOT_ROUNDS, PRESSED_PAGES, PRESSED_ROUNDS, SAMPLED_PAGES, USED_BEFORE_EXEC,
};
use crate::{PAGE, PRIVATE, READ_WRITE, end, execute, handle, leave, make_process, map, wait_for};
use std::ffi::CStr;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};

fn map_pages(pages: usize) -> *mut u8 {
    map(pages * PAGE, READ_WRITE, PRIVATE)
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
    // All are there at one time, however late each gets a CPU.
    let all = Barrier::new(6);
    std::thread::scope(|scope| {
        for seed in 0..6 {
            let all = &all;
            scope.spawn(move || {
                all.wait();
                work(seed);
            });
        }
    });
    leave(3);
}

pub(crate) fn forks() {
    let addr = map_pages(8);
    touch(addr, 8);
    for depth in 0..3 {
        wait_for(make_process(|| {
            touch(addr, 8 - depth);
            touch(map_pages(2), 2);
            if depth == 1 {
                wait_for(make_process(|| {
                    touch(addr, 2);
                    end(11);
                }));
            }
            end(10);
        }));
        touch(addr, 8);
    }
    leave(0);
}

pub(crate) fn uses_again() {
    let addr = map_pages(600);
    touch(addr, 600);
    let begun = std::time::Instant::now();
    // However late it gets a CPU, some samples are taken meanwhile.
    let spent = || rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    while begun.elapsed() < std::time::Duration::from_secs(1)
        || spent().tv_sec == 0 && spent().tv_nsec < 300_000_000
    {
        touch(addr, 200);
    }
    leave(0);
}

/// Uses all of its pages in turns, and each time waits until most are paged out, as it is recorded under
/// pressure. It ends with 1 if they stay.
pub(crate) fn uses_what_was_paged_out() {
    let addr = map_pages(PRESSED_PAGES);
    for _ in 0..=PRESSED_ROUNDS {
        touch(addr, PRESSED_PAGES);
        if !goes_out() {
            leave(1);
        }
    }
    leave(0);
}

/// Waits until most of so many pages are paged out. `false` if they stay.
fn goes_out() -> bool {
    let begun = std::time::Instant::now();
    while resident_pages() > PRESSED_PAGES / 2 {
        if begun.elapsed() > std::time::Duration::from_secs(60) {
            return false;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    true
}

/// Processes, one after the other, that use pages again which were paged out, as they are recorded under
/// pressure, and become another program right after that. It ends with 1 if the pages stay.
pub(crate) fn executes_what_used_pages_again() {
    for _ in 0..EXECUTING {
        let status = wait_for(make_process(|| {
            let addr = map_pages(PRESSED_PAGES);
            touch(addr, PRESSED_PAGES);
            let begun = std::time::Instant::now();
            while present(addr, USED_BEFORE_EXEC) > 0 {
                if begun.elapsed() > std::time::Duration::from_secs(60) {
                    end(1);
                }
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            // Under pressure this call stops, and the recorder handles it when it has seen what has gone.
            // With so little left it pages out no more.
            // SAFETY: inside of the mapping, and not used any more.
            let rest = unsafe { addr.add(USED_BEFORE_EXEC * PAGE) };
            unmap(rest, PRESSED_PAGES - USED_BEFORE_EXEC);
            touch(addr, USED_BEFORE_EXEC);
            execute(&[c"/proc/self/exe", c"nothing"]);
            end(2);
        }));
        if status != 0 {
            leave(1);
        }
    }
    leave(0);
}

/// Threads that end at once fill its pages, each some of them. Then it uses all of these in turns, and each
/// time waits until most are paged out.
pub(crate) fn uses_what_short_threads_filled() {
    const EACH: usize = 16;
    let addr = map_pages(PRESSED_PAGES).expose_provenance();
    for first in (0..PRESSED_PAGES).step_by(EACH) {
        let part = addr + first * PAGE;
        let fill = move || touch(std::ptr::with_exposed_provenance_mut(part), EACH);
        std::thread::spawn(fill).join().unwrap();
    }
    for _ in 0..PRESSED_ROUNDS {
        if !goes_out() {
            leave(1);
        }
        touch(std::ptr::with_exposed_provenance_mut(addr), PRESSED_PAGES);
    }
    leave(0);
}

/// What it uses in turns comes in without a page fault at its address: populated, moved, and inherited from a
/// parent that ends.
pub(crate) fn uses_what_came_in_without_a_fault() {
    let len = PRESSED_PAGES * PAGE;
    let uses = |addr: *mut u8| {
        for _ in 0..PRESSED_ROUNDS {
            if !goes_out() {
                end(1);
            }
            touch(addr, PRESSED_PAGES);
        }
    };
    let populated = map(len, READ_WRITE, PRIVATE | libc::MAP_POPULATE);
    uses(populated);
    unmap(populated, PRESSED_PAGES);

    let (from, to) = (map_pages(PRESSED_PAGES), map_pages(PRESSED_PAGES));
    touch(from, PRESSED_PAGES);
    // SAFETY: both are mappings of this program, which uses `from` no more.
    let moved = unsafe { libc::mremap(from.cast(), len, len, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, to) };
    assert_ne!(moved, libc::MAP_FAILED);
    uses(moved.cast());
    unmap(moved.cast(), PRESSED_PAGES);

    let (mut told, tells) = std::io::pipe().unwrap();
    wait_for(make_process(|| {
        let inherited = map_pages(PRESSED_PAGES);
        touch(inherited, PRESSED_PAGES);
        make_process(|| {
            uses(inherited);
            (&tells).write_all(b"done").unwrap();
        });
    }));
    drop(tells);
    let mut done = String::new();
    told.read_to_string(&mut done).unwrap();
    leave(i32::from(done != "done"));
}

/// Uses all of its pages, then each page of one region in four again and again, in turns.
pub(crate) fn uses_a_part_of_its_memory() {
    const ROUNDS: usize = 5;
    const REGION_PAGES: usize = 512;
    let addr = map_pages(SAMPLED_PAGES);
    touch(addr, SAMPLED_PAGES);
    for _ in 0..ROUNDS {
        for page in (0..SAMPLED_PAGES).filter(|page| (page / REGION_PAGES).is_multiple_of(4)) {
            // SAFETY: the mapping has so many pages.
            unsafe { addr.add(page * PAGE).write_volatile(1) };
        }
        // The recorder gets its turn, on a machine with one processor as well.
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    leave(0);
}

/// Fills its pages, the first half with zeros and one number, the rest with noise. It reads the rest until
/// the first half is paged out, and of the rest at least a page, as it is recorded under pressure. It ends
/// with 1 if they stay.
pub(crate) fn holds_pages_that_compress_differently() {
    let addr = map_pages(PRESSED_PAGES);
    let mut noise = 1_u64;
    for page in 0..PRESSED_PAGES {
        for word in 0..PAGE / 8 {
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // The low bits of such a generator repeat.
            let word_of_page =
                if page >= PRESSED_PAGES / 2 { noise ^ noise >> 32 } else { u64::from(word == 9) };
            // SAFETY: the mapping has so many pages of so many words.
            unsafe { addr.add(page * PAGE).cast::<u64>().add(word).write_volatile(word_of_page) };
        }
    }
    let begun = std::time::Instant::now();
    let half = PRESSED_PAGES / 2;
    // SAFETY: inside of the mapping.
    let rest = unsafe { addr.add(half * PAGE) };
    while present(addr, half) > 0 || present(rest, half) == half {
        if begun.elapsed() > std::time::Duration::from_secs(60) {
            leave(1);
        }
        for page in PRESSED_PAGES / 2..PRESSED_PAGES {
            // SAFETY: inside of the mapping.
            unsafe { addr.add(page * PAGE).read_volatile() };
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    leave(0);
}

/// Fills its pages, one in eight with noise and the others with noise up to their middle. Then it uses those
/// of the first kind alone, again and again, and each time waits until some are paged out, as it is recorded
/// under pressure. It ends with 1 if they stay.
pub(crate) fn uses_pages_that_compress_badly() {
    let addr = map_pages(PRESSED_PAGES);
    let mut noise = 1_u64;
    for page in 0..PRESSED_PAGES {
        let words = if page.is_multiple_of(HOT_EACH) { PAGE / 8 } else { PAGE / 16 };
        for word in 0..words {
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // The low bits of such a generator repeat. SAFETY: the mapping has so many pages of so many
            // words.
            unsafe { addr.add(page * PAGE).cast::<u64>().add(word).write_volatile(noise ^ noise >> 32) };
        }
    }
    for _ in 0..HOT_ROUNDS {
        let begun = std::time::Instant::now();
        while resident_pages() > PRESSED_PAGES / HOT_EACH {
            if begun.elapsed() > std::time::Duration::from_secs(60) {
                leave(1);
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        for page in (0..PRESSED_PAGES).step_by(HOT_EACH) {
            // SAFETY: the mapping has so many pages.
            unsafe { addr.add(page * PAGE).read_volatile() };
        }
    }
    // So swap holds the most at the end, not when the last of the pages above were written.
    touch(map_pages(PRESSED_PAGES / HOT_EACH), PRESSED_PAGES / HOT_EACH);
    leave(0);
}

/// How many of these pages are in memory.
fn present(addr: *mut u8, pages: usize) -> usize {
    const PRESENT: u8 = 1 << 7;
    let mut words = vec![0; pages * 8];
    let pagemap = std::fs::File::open("/proc/self/pagemap").unwrap();
    pagemap.read_exact_at(&mut words, (addr.addr() / PAGE * 8) as u64).unwrap();
    words.chunks(8).filter(|word| word[7] & PRESENT != 0).count()
}

/// Pages of anonymous memory that this process has.
fn resident_pages() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let words: Vec<usize> = text.split(' ').map(|word| word.trim().parse().unwrap()).collect();
    words[1] - words[2]
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
    let (addr, flags) = (std::ptr::with_exposed_provenance_mut(addr), PRIVATE | libc::MAP_FIXED);
    // SAFETY: the guard is memory that the child set aside for this.
    unsafe { libc::mmap(addr, PAGE, READ_WRITE, flags, -1, 0) };
}

pub(crate) fn guard() {
    handle(libc::SIGSEGV, open_guard as extern "C" fn(i32) as libc::sighandler_t);
    for round in 0..4 {
        let guard = map(3 * PAGE, libc::PROT_NONE, PRIVATE);
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
        let shared = |len, fd| libc::mmap(std::ptr::null_mut(), len, READ_WRITE, libc::MAP_SHARED, fd, 0);
        touch(shared(4 * PAGE, fd).cast(), 2);
        shared(PAGE, 999);
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

/// Exits with 0 if the kernel has none.
pub(crate) fn asks_by_x32() {
    const X32: i64 = 0x4000_0000;
    // SAFETY: asks for the process id.
    let refused = unsafe { libc::syscall(libc::SYS_getpid | X32) } == -1;
    leave(i32::from(!refused));
}

pub(crate) fn foreign() {
    // brk and link of the i386 table. A kernel without that table sends a signal.
    // SAFETY: asks for the break; changes no memory. The compiler's use of rbx is respected by the exchange.
    unsafe {
        for number in [45_u64, 9] {
            std::arch::asm!(
                "xchg rbx, {zero}", "int 0x80", "xchg rbx, {zero}",
                zero = inout(reg) 0_u64 => _, inout("rax") number => _,
                out("r8") _, out("r9") _, out("r10") _, out("r11") _,
            );
        }
    }
    leave(0);
}
