//! Programs whose calls fail, depend on what a descriptor names, or are not built.

use crate::shared::{FAILING, OWN, PAGE};
use std::ffi::CString;
use std::ptr;

const HUGE: usize = 2 << 20;

const READ: i32 = libc::PROT_READ;

const WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

const EXEC: i32 = libc::PROT_READ | libc::PROT_EXEC;

const ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// Makes a system call; the result as the kernel gives it.
fn call(number: i64, args: [usize; 6]) -> i64 {
    let [first, second, third, fourth, fifth, sixth] = args;
    // SAFETY: what the calls of this file may do to memory, they do to mappings of their own.
    let result = unsafe { libc::syscall(number, first, second, third, fourth, fifth, sixth) };
    if result == -1 { -i64::from(std::io::Error::last_os_error().raw_os_error().unwrap()) } else { result }
}

fn map(addr: usize, len: usize, prot: i32, flags: i32, file: i32, offset: usize) -> i64 {
    call(libc::SYS_mmap, [addr, len, prot as usize, flags as usize, file as usize, offset])
}

fn protect(addr: i64, prot: i32) -> i64 {
    call(libc::SYS_mprotect, [addr as usize, PAGE, prot as usize, 0, 0, 0])
}

fn open(path: &str, flags: i32) -> i32 {
    let path = CString::new(path).unwrap();
    // SAFETY: the path is a live C string.
    unsafe { libc::open(path.as_ptr(), flags, 0o600) }
}

/// A memory file of a page with these seals.
fn sealed(seals: i32) -> i32 {
    // SAFETY: the name is a live C string; the other calls take numbers.
    unsafe {
        let file = libc::memfd_create(c"sealed".as_ptr(), libc::MFD_ALLOW_SEALING);
        assert_eq!(libc::ftruncate(file, PAGE as i64), 0);
        assert_eq!(libc::fcntl(file, libc::F_ADD_SEALS, seals), 0);
        file
    }
}

pub(crate) fn fails() {
    let own = map(0, 4 * PAGE, WRITE, ANONYMOUS, -1, 0) as usize;
    for (number, args) in FAILING {
        let args = args.map(|arg| if arg == OWN { own } else { arg });
        assert!(call(number, args) < 0, "{number}");
    }
    std::process::exit(0)
}

/// Maps each descriptor in every way, and tries to change what may be done.
fn try_all(files: &[i32]) {
    for &file in files {
        for kind in [libc::MAP_SHARED, libc::MAP_PRIVATE] {
            for prot in [libc::PROT_NONE, READ, WRITE, EXEC] {
                let addr = map(0, PAGE, prot, kind, file, 0);
                if addr > 0 {
                    protect(addr, WRITE);
                    protect(addr, EXEC);
                    call(libc::SYS_munmap, [addr as usize, PAGE, 0, 0, 0, 0]);
                }
            }
        }
    }
}

pub(crate) fn maps_descriptors() {
    let paths = ["/dev/null", "/dev/urandom", "/proc/self/maps", "/proc/cpuinfo", "/proc/self", "/dev/zero"];
    let mut files: Vec<i32> = paths.map(|path| open(path, libc::O_RDONLY)).into();
    files.push(open("/dev/zero", libc::O_RDWR));
    files.push(open("/dev/zero", libc::O_PATH));
    let mut pipe = [0; 2];
    // SAFETY: the calls write to the live variables that they are given; the others take numbers.
    unsafe {
        assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
        files.extend(pipe);
        files.extend([libc::AF_UNIX, libc::AF_INET].map(|family| libc::socket(family, libc::SOCK_STREAM, 0)));
        files.push(libc::epoll_create1(0));
        files.push(libc::eventfd(0, 0));
        files.push(libc::timerfd_create(libc::CLOCK_MONOTONIC, 0));
        let name = CString::new(format!("/quire-test-{}", std::process::id())).unwrap();
        let queue = libc::mq_open(
            name.as_ptr(),
            libc::O_RDWR | libc::O_CREAT,
            0o600,
            ptr::null_mut::<libc::mq_attr>(),
        );
        libc::mq_unlink(name.as_ptr());
        files.push(queue);
    }
    for seals in [0, libc::F_SEAL_WRITE, libc::F_SEAL_FUTURE_WRITE, 0x20] {
        let file = sealed(seals);
        files.extend([file, open(&format!("/proc/self/fd/{file}"), libc::O_RDONLY)]);
    }
    files.retain(|file| *file >= 0);
    try_all(&files);
    // A refusal by the file itself comes after what was to be replaced is gone.
    let replaced = map(0, 4 * PAGE, WRITE, ANONYMOUS, -1, 0) as usize;
    for (page, path) in ["/proc/cpuinfo", "/dev/null"].into_iter().enumerate() {
        let at = replaced + (2 * page) * PAGE;
        assert!(map(at, PAGE, READ, libc::MAP_PRIVATE | libc::MAP_FIXED, open(path, libc::O_RDONLY), 0) < 0);
        let mut vector = [0_u8];
        call(libc::SYS_mincore, [at, PAGE, vector.as_mut_ptr() as usize, 0, 0, 0]);
    }
    // The ring of io_uring is mapped at an offset of its own.
    let mut parameters = [0_u8; 120];
    let ring = call(libc::SYS_io_uring_setup, [8, parameters.as_mut_ptr() as usize, 0, 0, 0, 0]);
    if ring >= 0 {
        let addr = map(0, PAGE, WRITE, libc::MAP_SHARED | libc::MAP_POPULATE, ring as i32, 0x1000_0000);
        assert!(addr > 0, "{addr}");
        map(0, PAGE, WRITE, libc::MAP_SHARED, ring as i32, 0x7000_0000);
    }
    std::process::exit(0)
}

pub(crate) fn maps_zeros() {
    let zero = open("/dev/zero", libc::O_RDWR);
    // So that a place for 2 MiB is not aligned by chance.
    map(0, 3 * PAGE, WRITE, ANONYMOUS, -1, 0);
    for len in [HUGE - PAGE, HUGE, HUGE + PAGE, 3 * HUGE] {
        for kind in [libc::MAP_SHARED, libc::MAP_PRIVATE] {
            for offset in
                [0, PAGE, 5 * PAGE, 0x7fff_ffff_ff00_0000, 0x7fff_ffff_ffff_e000, usize::MAX - HUGE + 1]
            {
                let addr = map(0, len, WRITE, kind, zero, offset);
                map(0, PAGE, READ, ANONYMOUS, -1, 0);
                if addr > 0 && offset == PAGE {
                    call(libc::SYS_munmap, [addr as usize, len, 0, 0, 0, 0]);
                }
            }
            map(0, len, WRITE, kind | libc::MAP_ANONYMOUS, -1, 0x5000);
        }
    }
    // Two shared mappings of zeros side by side are two.
    let both = map(0, 2 * PAGE, WRITE, ANONYMOUS, -1, 0) as usize;
    for (place, offset) in [(both, 0), (both + PAGE, PAGE)] {
        map(place, PAGE, WRITE, libc::MAP_SHARED | libc::MAP_FIXED, zero, offset);
    }
    call(libc::SYS_mremap, [both, 2 * PAGE, 3 * PAGE, libc::MREMAP_MAYMOVE as usize, 0, 0]);
    // Private ones are anonymous memory with a file, and move alone.
    let private = map(0, 4 * PAGE, WRITE, libc::MAP_PRIVATE, zero, 0) as usize;
    for page in 0..2 {
        // SAFETY: the page lies in the mapping.
        unsafe { ptr::with_exposed_provenance_mut::<u8>(private + page * PAGE).write_volatile(1) };
    }
    for advice in [libc::MADV_FREE, libc::MADV_WIPEONFORK, libc::MADV_COLD, libc::MADV_DONTNEED] {
        call(libc::SYS_madvise, [private, PAGE, advice as usize, 0, 0, 0]);
    }
    map(private + 2 * PAGE, PAGE, WRITE, ANONYMOUS | libc::MAP_FIXED, -1, 0);
    let to = map(0, 16 * PAGE, 0, ANONYMOUS, -1, 0) as usize;
    for first in 0..4 {
        for pages in 1..4 - first {
            let from = private + first * PAGE;
            call(libc::SYS_mremap, [from, pages * PAGE, pages * PAGE, 3, to + 4 * first * PAGE, 0]);
            call(libc::SYS_mremap, [to + 4 * first * PAGE, pages * PAGE, pages * PAGE, 3, from, 0]);
        }
    }
    std::process::exit(0)
}

/// Tries to divide the vdso and a ring of perf events, and then takes them whole.
pub(crate) fn divides_special_mappings() {
    // SAFETY: the function asks for a number.
    let vdso = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } as usize;
    // A dummy event of software: the type, the size and the number; all else is zero.
    let mut event = [0_u64; 16];
    event[0] = 1 | (size_of_val(&event) as u64) << 32;
    event[1] = 9;
    let perf = call(
        libc::SYS_perf_event_open,
        [event.as_ptr().expose_provenance(), 0, usize::MAX, usize::MAX, 0, 0],
    );
    // Where it may not be opened there is only the vdso.
    let ring =
        if perf >= 0 { map(0, 3 * PAGE, WRITE, libc::MAP_SHARED, perf as i32, 0) as usize } else { vdso };
    let free = map(0, 16 * PAGE, 0, ANONYMOUS, -1, 0) as usize;
    for (whole, pages) in [(vdso, 2), (ring, if ring == vdso { 2 } else { 3 })] {
        for part in [whole, whole + (pages - 1) * PAGE] {
            call(libc::SYS_mremap, [part, PAGE, PAGE, 3, free, 0]);
            call(libc::SYS_mprotect, [part, PAGE, 0, 0, 0, 0]);
            call(libc::SYS_madvise, [part, PAGE, libc::MADV_RANDOM as usize, 0, 0, 0]);
            call(libc::SYS_munmap, [part, PAGE, 0, 0, 0, 0]);
            map(part, PAGE, READ, ANONYMOUS | libc::MAP_FIXED, -1, 0);
        }
        call(libc::SYS_mremap, [whole, pages * PAGE, PAGE, 0, 0, 0]);
        call(libc::SYS_mremap, [whole, pages * PAGE, 4 * PAGE, 1, 0, 0]);
        call(libc::SYS_mremap, [whole, pages * PAGE, pages * PAGE, 3, free, 0]);
    }
    call(libc::SYS_exit_group, [0; 6]);
}

pub(crate) fn attaches() {
    // A hole of ten pages, in which all that follows is placed as long as it fits.
    let hole = map(0, 10 * PAGE, WRITE, ANONYMOUS, -1, 0) as usize;
    call(libc::SYS_munmap, [hole, 10 * PAGE, 0, 0, 0, 0]);
    let id = call(libc::SYS_shmget, [libc::IPC_PRIVATE as usize, 3 * PAGE + 5, 0o600, 0, 0, 0]);
    let attach = |flags: i32| call(libc::SYS_shmat, [id as usize, 0, flags as usize, 0, 0, 0]);
    let detach = |addr: i64| call(libc::SYS_shmdt, [addr as usize, 0, 0, 0, 0, 0]);
    let (first, second) = (attach(0), attach(libc::SHM_RDONLY));
    assert_eq!(protect(second, WRITE), -i64::from(libc::EACCES));
    // Detaching takes what is left of a segment, in two parts with a hole.
    protect(first, READ);
    call(libc::SYS_munmap, [first as usize + PAGE, PAGE, 0, 0, 0, 0]);
    assert_eq!((detach(first), detach(second)), (0, 0));
    map(0, 8 * PAGE, WRITE, ANONYMOUS, -1, 0);
    let mut context = 0_usize;
    assert_eq!(call(libc::SYS_io_setup, [64, (&raw mut context) as usize, 0, 0, 0, 0]), 0);
    map(0, PAGE, WRITE, ANONYMOUS, -1, 0);
    assert_eq!(call(libc::SYS_io_destroy, [context, 0, 0, 0, 0, 0]), 0);
    map(0, PAGE, WRITE, ANONYMOUS, -1, 0);
    map(0, PAGE, READ, ANONYMOUS, -1, 0);
    call(libc::SYS_shmctl, [id as usize, libc::IPC_RMID as usize, 0, 0, 0, 0]);
    std::process::exit(0)
}

pub(crate) fn maps_huge_pages() {
    let size = |log: i32| log << libc::MAP_HUGE_SHIFT;
    let huge = ANONYMOUS | libc::MAP_HUGETLB;
    let free = huge | libc::MAP_NORESERVE;
    let (all, invalid, bad) = (usize::MAX, -i64::from(libc::EINVAL), -i64::from(libc::EBADF));
    // Sizes that Linux does not know, no length, a length that wraps, no kind, a descriptor that is not open.
    for (len, flags, file, expected) in [
        (HUGE, free | size(5), -1, invalid),
        (0, free, -1, invalid),
        (all, free, -1, invalid),
        (HUGE, free & !libc::MAP_PRIVATE, -1, invalid),
        (HUGE, libc::MAP_PRIVATE | libc::MAP_HUGETLB, -1, bad),
    ] {
        assert_eq!(map(0, len, WRITE, flags, file, 0), expected, "{len:#x} {flags:#x}");
    }
    map(0, HUGE, WRITE, huge, -1, 0);
    let addr = map(0, 2 * HUGE, WRITE, free, -1, 0);
    assert!(addr > 0 && (addr as usize).is_multiple_of(HUGE));
    map(0, HUGE, WRITE, free | size(21), -1, 0);
    map(0, PAGE, WRITE, ANONYMOUS, -1, 0);
    assert_eq!(protect(addr, READ), invalid);
    call(libc::SYS_munmap, [addr as usize + PAGE, PAGE, 0, 0, 0, 0]);
    call(libc::SYS_munmap, [addr as usize, HUGE, 0, 0, 0, 0]);
    map(0, HUGE, WRITE, ANONYMOUS, -1, 0);
    std::process::exit(0)
}

pub(crate) fn asks_into_bad_vectors() {
    let own = map(0, 8 * PAGE, WRITE, ANONYMOUS, -1, 0) as usize;
    let fixed = ANONYMOUS | libc::MAP_FIXED;
    map(own + 2 * PAGE, PAGE, READ, fixed, -1, 0);
    map(own + 3 * PAGE, PAGE, libc::PROT_NONE, fixed, -1, 0);
    call(libc::SYS_munmap, [own + 5 * PAGE, PAGE, 0, 0, 0, 0]);
    let ask =
        |start: usize, len: usize, vector: usize| call(libc::SYS_mincore, [start, len, vector, 0, 0, 0]);
    let fault = -i64::from(libc::EFAULT);
    assert_eq!(ask(own, 3 * PAGE, own + PAGE), 0);
    for vector in [0, own + 2 * PAGE, own + 3 * PAGE, own + 5 * PAGE, own + 5 * PAGE - 1, 1 << 63, usize::MAX]
    {
        assert_eq!(ask(own, 3 * PAGE, vector), fault);
    }
    assert_eq!((ask(own, 0, 0), ask(own, 0, usize::MAX)), (0, fault));
    assert_eq!(ask(own + 1, PAGE, 0), -i64::from(libc::EINVAL));
    assert_eq!(ask(1 << 63, 0, 0), -i64::from(libc::ENOMEM));
    // The hole comes after pages whose bytes cannot be written.
    assert_eq!(ask(own + 4 * PAGE, 3 * PAGE, 0), fault);
    assert_eq!(ask(own + 5 * PAGE, PAGE, 0), -i64::from(libc::ENOMEM));
    std::process::exit(0)
}

pub(crate) fn collapses() {
    let shared = map(0, 2 * HUGE, WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0) as usize;
    let start = shared.next_multiple_of(HUGE);
    for page in 0..512 {
        // SAFETY: the page lies in the mapping.
        unsafe { ptr::with_exposed_provenance_mut::<u8>(start + page * PAGE).write_volatile(1) };
    }
    // What becomes of it depends on the memory of the host.
    call(libc::SYS_madvise, [start, HUGE, 25, 0, 0, 0]);
    std::process::exit(0)
}

/// Takes the guard away that was touched.
extern "C" fn unguard(_signal: i32, info: *const libc::siginfo_t, _context: *const libc::c_void) {
    // SAFETY: the kernel hands the handler its information.
    let page = unsafe { (*info).si_addr() } as usize & !(PAGE - 1);
    call(libc::SYS_madvise, [page, PAGE, GUARD_REMOVE, 0, 0, 0]);
}

const GUARD_INSTALL: usize = 102;
const GUARD_REMOVE: usize = 103;

/// Installs guards before and after a page is used, in memory of each kind, and touches some.
pub(crate) fn installs_guards() {
    // SAFETY: all zeros is a valid action, and the handler has the signature that SA_SIGINFO asks for.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = unguard as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGSEGV, &raw const action, ptr::null_mut()), 0);
    }
    let shared = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    // SAFETY: the kernel only reads the name, which is a C string.
    let file = unsafe { libc::memfd_create(c"guarded".as_ptr(), 0) };
    // SAFETY: takes numbers.
    assert_eq!(unsafe { libc::ftruncate(file, 8 * PAGE as i64) }, 0);
    for (flags, file) in [(ANONYMOUS, -1), (shared, -1), (libc::MAP_PRIVATE, file), (libc::MAP_SHARED, file)]
    {
        let area = map(0, 8 * PAGE, WRITE, flags, file, 0) as usize;
        // SAFETY: the page lies in the mapping; a guard is removed by the handler.
        let write = |page: usize| unsafe { (area as *mut u8).add(page * PAGE).write_volatile(1) };
        write(0);
        // Kernels before 6.15 refuse all but the first kind.
        let installed = call(libc::SYS_madvise, [area, 4 * PAGE, GUARD_INSTALL, 0, 0, 0]);
        write(1);
        write(5);
        // SAFETY: the child does no more than to exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            write(2);
            // SAFETY: ends this process.
            unsafe { libc::_exit(i32::from(installed != 0)) }
        }
        // SAFETY: waits for the child.
        unsafe { libc::waitpid(child, ptr::null_mut(), 0) };
        call(libc::SYS_madvise, [area, 8 * PAGE, libc::MADV_DONTNEED as usize, 0, 0, 0]);
        write(3);
        call(libc::SYS_madvise, [area, 8 * PAGE, GUARD_REMOVE, 0, 0, 0]);
        write(0);
    }
    std::process::exit(0)
}

pub(crate) fn maps_below_2g() {
    let flags = ANONYMOUS | libc::MAP_32BIT;
    let first = map(0, 3 * PAGE, WRITE, flags, -1, 0);
    assert!((0x4000_0000..0x8000_0000).contains(&first));
    // Each search begins at a place of its own.
    let second = map(0, PAGE, WRITE, flags, -1, 0);
    assert!((0x4000_0000..0x8000_0000).contains(&second));
    // SAFETY: the page was just mapped for writing.
    unsafe { (first as *mut u8).write_volatile(1) };
    // Hints that cannot be used: one is taken, others lie too high or wrap. Then one that can.
    let free = first as usize + 0x100_0000;
    for hint in [first as usize, 1 << 40, usize::MAX, free] {
        map(hint, PAGE, WRITE, flags, -1, 0);
    }
    // This type refuses flags that it does not know, MAP_FIXED_NOREPLACE among them.
    map(0, PAGE, READ, libc::MAP_SHARED_VALIDATE | libc::MAP_32BIT, sealed(0), 0);
    assert_eq!(call(libc::SYS_munmap, [first as usize, 3 * PAGE, 0, 0, 0, 0]), 0);
}
