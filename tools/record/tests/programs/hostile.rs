//! A program whose calls have arguments that no sane program has.

use crate::PAGE;

/// Reads and writes are allowed, fetches too: the program runs on whatever it changes.
const ALL: u64 = (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) as u64;

/// No space of Linux ends higher, whatever the CPU: on x86-64 with five levels of tables one ends here.
const TASK_SIZE: u64 = (1 << 56) - 4096;

pub(crate) fn makes_hostile_calls() {
    let len = 64 * PAGE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let addr =
        unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    assert_ne!(addr, libc::MAP_FAILED);
    for page in 0..64 {
        // SAFETY: inside of the mapping that was just made.
        unsafe { addr.cast::<u8>().add(page * PAGE).write_volatile(1) };
    }
    let own = addr.expose_provenance() as u64;
    let words = [
        0,
        1,
        4095,
        4096,
        u64::MAX,
        -4096_i64 as u64,
        -8192_i64 as u64,
        1 << 47,
        (1 << 47) - 4096,
        1 << 56,
        1 << 63,
        0x7fff_ffff_ffff_e000,
        own,
        own + 1,
    ];
    // What these calls can change of the program does not stop it: they name nothing that is mapped, or leave
    // contents and rights alone.
    let mut calls: Vec<[u64; 6]> = Vec::new();
    for start in words {
        for len in words {
            let mut call = |number: i64, rest: [u64; 3]| {
                calls.push([number as u64, start, len, rest[0], rest[1], rest[2]]);
            };
            call(libc::SYS_mprotect, [ALL, 0, 0]);
            call(libc::SYS_pkey_mprotect, [ALL, u64::MAX, 0]);
            call(libc::SYS_madvise, [libc::MADV_NORMAL as u64, 0, 0]);
            call(libc::SYS_msync, [libc::MS_ASYNC as u64, 0, 0]);
            call(libc::SYS_mincore, [0, 0, 0]);
            call(libc::SYS_munlock, [0, 0, 0]);
            call(libc::SYS_brk, [0, 0, 0]);
            // Unaligned starts, and lengths that no space has.
            call(libc::SYS_munmap, [0, 0, 0]);
            if start != own {
                call(libc::SYS_mremap, [start ^ len, libc::MREMAP_MAYMOVE as u64, 0]);
                call(libc::SYS_shmdt, [0, 0, 0]);
            }
            calls.push([libc::SYS_mmap as u64, 0, len, 0, flags as u64, u64::MAX]);
        }
    }
    for [number, start, len, a, b, c] in calls {
        let ends_here = start.checked_add(len).is_some_and(|end| end <= TASK_SIZE);
        if number == libc::SYS_munmap as u64 && ends_here && start.is_multiple_of(PAGE as u64) {
            continue;
        }
        // SAFETY: no call takes away or protects memory of this program.
        unsafe { libc::syscall(number as i64, start, len, a, b, c) };
    }
    std::process::exit(17);
}
