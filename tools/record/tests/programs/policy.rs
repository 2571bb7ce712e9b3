//! Programs that make calls whose results depend on what it is allowed to do.

use crate::{PAGE, PRIVATE, READ_WRITE, execute, leave, make_process, wait_for};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::ffi::CStr;
use std::ptr::null_mut;

/// `CAP_IPC_LOCK` and `CAP_SYS_RAWIO`.
const BOTH: u32 = 1 << 14 | 1 << 17;

fn map(addr: usize, len: usize, prot: i32, flags: i32) -> *mut u8 {
    // SAFETY: a new mapping; fixed addresses are below all that the program has.
    unsafe { libc::mmap(addr as *mut _, len, prot, flags, -1, 0).cast() }
}

/// Keeps only these of the two capabilities in effect; all stay permitted.
fn set_privileges(wanted: u32) {
    let mut head = [0x2008_0522_u32, 0];
    let mut data = [0_u32; 6];
    // SAFETY: the kernel reads and writes the two live blocks, which have its sizes.
    unsafe {
        libc::syscall(libc::SYS_capget, head.as_mut_ptr(), data.as_mut_ptr());
        data[0] = data[0] & !BOTH | data[1] & wanted;
        libc::syscall(libc::SYS_capset, head.as_mut_ptr(), data.as_mut_ptr());
    }
}

fn limit_locked(bytes: u64) {
    let limit = getrlimit(Resource::Memlock);
    let current = Some(limit.maximum.map_or(bytes, |most| bytes.min(most)));
    setrlimit(Resource::Memlock, Rlimit { current, ..limit }).unwrap();
}

/// Makes every call that the privilege and the limit decide about. What comes of it is in the recording.
fn lock_in_every_way() {
    let memory = map(0, 16 * PAGE, READ_WRITE, PRIVATE).cast();
    // SAFETY: calls about memory that was mapped here, and about all of the program's: none changes what it
    // holds.
    unsafe {
        for pages in [0, 1, 2, 12] {
            libc::mlock(memory, pages * PAGE);
            libc::munlock(memory, 16 * PAGE);
            libc::syscall(libc::SYS_mlock2, memory, pages * PAGE, libc::MLOCK_ONFAULT);
            libc::munlock(memory, 16 * PAGE);
        }
        libc::mlock(memory.wrapping_byte_add(1 << 40), PAGE);
        for pages in [1, 12] {
            let locked = map(0, pages * PAGE, READ_WRITE, PRIVATE | libc::MAP_LOCKED);
            if locked.cast() != libc::MAP_FAILED {
                libc::munmap(locked.cast(), pages * PAGE);
            }
        }
        // Memory that is locked grows.
        let small = map(0, 2 * PAGE, READ_WRITE, PRIVATE).cast();
        libc::mlock(small, 2 * PAGE);
        let grown = libc::mremap(small, 2 * PAGE, 14 * PAGE, libc::MREMAP_MAYMOVE);
        if grown == libc::MAP_FAILED {
            libc::munmap(small, 2 * PAGE);
        } else {
            libc::munmap(grown, 14 * PAGE);
        }
        libc::mlockall(libc::MCL_CURRENT | libc::MCL_ONFAULT);
        libc::munlockall();
        libc::mlockall(libc::MCL_FUTURE);
        let brk = libc::syscall(libc::SYS_brk, 0);
        libc::syscall(libc::SYS_brk, brk + (20 * PAGE) as i64);
        libc::syscall(libc::SYS_brk, brk);
        for pages in [1, 12] {
            let later = map(0, pages * PAGE, READ_WRITE, PRIVATE);
            if later.cast() != libc::MAP_FAILED {
                libc::munmap(later.cast(), pages * PAGE);
            }
        }
        libc::munlockall();
        libc::munmap(memory, 16 * PAGE);
    }
}

/// Runs `work` in a child and waits for it.
fn in_child(work: impl FnOnce()) {
    wait_for(make_process(work));
}

/// Runs one of the programs here anew. Another user may not be permitted to search the folders above it.
fn become_program(name: &CStr) {
    execute(&[c"/proc/self/exe", name]);
}

const LIMITS: [u64; 4] = [0, 2 * PAGE as u64, 4 * PAGE as u64 + 5, 1 << 20];

pub(crate) fn locks() {
    for limit in LIMITS {
        in_child(|| {
            limit_locked(limit);
            lock_in_every_way();
            set_privileges(0);
            lock_in_every_way();
            in_child(lock_in_every_way);
            set_privileges(BOTH);
            lock_in_every_way();
        });
    }
    limit_locked(0);
    // Changes of the user, and what keeps the capabilities meanwhile.
    in_child(|| {
        // SAFETY: changes what this process may do, and nothing else.
        unsafe {
            libc::syscall(libc::SYS_setresuid, -1, 1000, -1);
            lock_in_every_way();
            libc::syscall(libc::SYS_setresuid, -1, 0, -1);
            lock_in_every_way();
            libc::prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0);
            libc::syscall(libc::SYS_setuid, 1000);
        }
        lock_in_every_way();
        set_privileges(BOTH);
        lock_in_every_way();
    });
    // A user namespace, in which there are all capabilities, and none of them counts.
    in_child(|| {
        // SAFETY: changes what this process may do, and nothing else.
        unsafe { libc::unshare(libc::CLONE_NEWUSER) };
        lock_in_every_way();
    });
    // The user of a new image is another one, and has no capabilities.
    in_child(|| {
        // SAFETY: changes what this process may do, and nothing else.
        unsafe { libc::syscall(libc::SYS_setreuid, 1000, 1000) };
        become_program(c"locks_in_every_way");
    });
    leave(0);
}

pub(crate) fn locks_in_every_way() {
    lock_in_every_way();
    leave(0);
}

/// Two threads of one space: one gives up its privileges, the other one keeps them.
pub(crate) fn threads_differ() {
    limit_locked(0);
    std::thread::scope(|scope| {
        let given_up = scope.spawn(|| {
            set_privileges(0);
            lock_in_every_way();
            // A thread has what its maker has.
            std::thread::scope(|scope| scope.spawn(lock_in_every_way).join()).ok();
        });
        given_up.join().ok();
        lock_in_every_way();
    });
    leave(0);
}

extern "C" fn limited_child(_: *mut libc::c_void) -> i32 {
    limit_locked(0);
    lock_in_every_way();
    0
}

/// A child that uses its maker's memory has limits of its own.
pub(crate) fn shares_memory() {
    set_privileges(0);
    limit_locked(1 << 20);
    let stack = map(0, 64 * PAGE, READ_WRITE, PRIVATE);
    // SAFETY: the child runs on a stack of its own while its maker waits (CLONE_VFORK), and ends there.
    unsafe {
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        let child = libc::clone(limited_child, stack.wrapping_add(64 * PAGE).cast(), flags, null_mut());
        libc::waitpid(child, null_mut(), 0);
    }
    lock_in_every_way();
    leave(0);
}

/// Mappings at and below the lowest addresses.
pub(crate) fn maps_low() {
    for privileges in [BOTH, 0] {
        set_privileges(privileges);
        for fixed in [0, libc::MAP_FIXED, libc::MAP_FIXED_NOREPLACE] {
            for addr in [0, 1, 0x1000, 0x8000, 0xf000, 0x1_0000, 0x1_1000] {
                let found = map(addr, PAGE, libc::PROT_READ, PRIVATE | fixed);
                if found.cast() != libc::MAP_FAILED {
                    // SAFETY: mapped by the line above.
                    unsafe { libc::munmap(found.cast(), PAGE) };
                }
            }
        }
        for addr in [0_usize, 0x1000] {
            let from = map(0, PAGE, libc::PROT_READ, PRIVATE).cast();
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            // SAFETY: moves what was just mapped to where nothing is, and unmaps it at both places.
            unsafe {
                libc::mremap(from, PAGE, PAGE, flags, addr as *mut libc::c_void);
                libc::munmap(from, PAGE);
                libc::munmap(addr as *mut _, PAGE);
            }
        }
    }
    leave(0);
}

/// Asks for memory that may be executed in every way.
fn execute_in_every_way() {
    // SAFETY: settings of this process, and calls about memory that is mapped here and used by nothing.
    unsafe {
        libc::prctl(libc::PR_GET_MDWE, 0, 0, 0, 0);
        for prot in 0..8 {
            for share in [libc::MAP_PRIVATE, libc::MAP_SHARED] {
                for other in 0..8 {
                    let addr = map(0, 2 * PAGE, prot, share | libc::MAP_ANONYMOUS).cast();
                    if addr == libc::MAP_FAILED {
                        break;
                    }
                    libc::mprotect(addr, PAGE, other);
                    libc::mprotect(addr, 2 * PAGE, other);
                    libc::munmap(addr, 2 * PAGE);
                }
            }
        }
        // What is refused leaves what was there.
        let kept = map(0, PAGE, READ_WRITE, PRIVATE);
        kept.write_volatile(1);
        map(kept.addr(), PAGE, 7, PRIVATE | libc::MAP_FIXED);
        kept.write_volatile(2);
        map(0, PAGE, 7, libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_GROWSDOWN);
        map(0, 1 << 46, 7, PRIVATE);
    }
}

fn set_mdwe(bits: u64, third: u64) {
    // SAFETY: a setting of this process.
    unsafe { libc::syscall(libc::SYS_prctl, libc::PR_SET_MDWE, bits, third, 0, 0) };
}

/// `PR_SET_MDWE` and what fork and exec keep of it.
pub(crate) fn mdwe() {
    execute_in_every_way();
    for bits in [1, 3] {
        in_child(|| {
            // What was both before stays so, but may not be said again.
            let before = map(0, PAGE, 7, PRIVATE);
            for (bits, third) in [(2, 0), (4, 0), (1 << 32, 0), (bits, 1), (0, 0), (bits, 0)] {
                set_mdwe(bits, third);
            }
            // SAFETY: the memory was mapped above and is used by nothing.
            unsafe { libc::mprotect(before.cast(), PAGE, 7) };
            for other in [bits, bits ^ 2, 0, 2] {
                set_mdwe(other, 0);
            }
            execute_in_every_way();
            in_child(execute_in_every_way);
            in_child(|| become_program(c"executes_in_every_way"));
            become_program(c"executes_in_every_way");
        });
    }
    leave(0);
}

pub(crate) fn executes_in_every_way() {
    execute_in_every_way();
    leave(0);
}
